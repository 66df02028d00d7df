"""Read the service's queue, write what comes, and acknowledge it after that commit; ask for what got lost.

All workers of a service read its queue. The broker gives the messages to one of them at a time, so they stay in order.

The broker can lose what it has confirmed. The numbers show it. A sender says how far its names are (POSITION). A
service that is behind asks for what is missing (RESEND). It gets that into its own queue, or hears that the source has
it no longer (GONE). A service that begins to read asks all others how far they are (HELLO). It misses nothing that was
told before its handlers were there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import Any

from django.db.models import Min, Q

from jobs.conf import Celery, conf
from jobs.conf.logs import logger
from jobs.contrib.event_broker import amqp, control, inbox, publisher
from jobs.contrib.event_broker.models import Position
from jobs.contrib.event_broker.wire import Message
from jobs.contrib.shared_connections.turns import turn
from jobs.events.models import PARKED, Event, Subscription
from jobs.events.relay import matches, periods
from jobs.events.services import service
from jobs.store import databases

#: Messages of one transaction, and how many the broker sends ahead.
CHUNK, AHEAD = 200, 400

#: Seconds for which messages are gathered after the first one: at the most, and while no other one comes.
GATHER, QUIET = 0.05, 0.005

#: Seconds between two looks at what is missing and what the handlers want; and until the queue is declared again,
#: because it may have been deleted.
LOOK, RENEW = 1.0, 30.0

#: Seconds: for which later events may overtake an event before it is asked for; between two questions; until the later
#: events are handed on without it, if its source does not answer.
OVERTAKEN, AGAIN, PATIENCE = 2.0, 5.0, 60.0

#: Events that answer one question, at the most.
RESENT = 1000


class Receiver(amqp.Link):
    who = "brings those of others"

    def __init__(self, app: Celery) -> None:
        super().__init__()
        self._app, self._arrived = app, list[Any]()
        self._patterns: set[str] = set()
        self._queue = amqp.queue_of(service())
        self._control = amqp.ControlLink()
        self._gaps = Gaps(app, databases.home(), self._control)
        #: The broker gives the messages to this worker, and not to another one of the service.
        self._is_active = False
        #: The number of the last message that came over this connection.
        self._tag = 0

    def work(self, stopping: threading.Event) -> None:
        self.open()
        self._arrived.clear()
        self._is_active, self._tag = False, 0
        self._declare(self._wanted())
        self.channel.basic_qos(0, AHEAD, False)
        self.channel.basic_consume(self._queue, callback=self._note)
        self.note_well()
        renew_at, look_at = time.monotonic() + RENEW, 0.0
        while not stopping.is_set():
            try:
                if self.drain(max(0.0, min(LOOK, look_at - time.monotonic()))):
                    end = time.monotonic() + GATHER
                    while 0 < len(self._arrived) < CHUNK and time.monotonic() < end and self.drain(QUIET):
                        pass
            except amqp.UNREADABLE as exc:
                self._put_aside(exc)
                return
            while self._arrived:
                self._store()
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + LOOK
                self._control.listen()
                wanted = self._wanted()
                if wanted != self._patterns or time.monotonic() >= renew_at:
                    renew_at = time.monotonic() + RENEW
                    self._declare(wanted)
                if self._is_active:
                    self._gaps.look()

    def close(self) -> None:
        super().close()
        self._control.close()

    @turn()
    def _wanted(self) -> set[str]:
        rows = Subscription.objects.using(databases.home()).filter(service=service())
        return set(rows.values_list("pattern", flat=True))

    def _declare(self, wanted: set[str]) -> None:
        """Declare the queue, bind it to what the handlers want, and ask how far that is."""
        arguments = {"x-single-active-consumer": True}
        amqp.declare_exchanges(self.channel)
        self.channel.queue_declare(self._queue, durable=True, auto_delete=False, arguments=arguments)
        for pattern in (amqp.HELLO, *sorted(wanted)):
            self.channel.queue_bind(self._queue, amqp.EXCHANGE, pattern)
        for pattern in (amqp.RESEND, *sorted(wanted)):
            self.channel.queue_bind(self._queue, amqp.DIRECT, amqp.direct_key(service(), pattern))
        for pattern in sorted(self._patterns - wanted):
            self.channel.queue_unbind(self._queue, amqp.EXCHANGE, pattern)
            self.channel.queue_unbind(self._queue, amqp.DIRECT, amqp.direct_key(service(), pattern))
        for text, patterns in (("gets %s", wanted - self._patterns), ("gets %s no longer", self._patterns - wanted)):
            if patterns:
                about = {"action": "events_bound", "queue": self._queue}
                logger.info(f"the queue %s {text}", self._queue, ", ".join(sorted(patterns)), extra=about)
        self._patterns = wanted
        hello = {"service": service(), "patterns": sorted(wanted)[: control.MOST]}
        self._control.say(amqp.HELLO, service(), hello, amqp.HELLO)

    def _note(self, message: Any) -> None:
        self._arrived.append(message)
        self._tag = message.delivery_info["delivery_tag"]

    def _put_aside(self, exc: Exception) -> None:
        """Keep and acknowledge a message that cannot be read, or it would come again and again.

        It is the one after the last that could be read.
        """
        while self._arrived:
            self._store()
        with turn():
            inbox.put_aside(self._app, databases.home(), exc)
        self.channel.basic_ack(self._tag + 1)
        self.hang_up()

    def _store(self) -> None:
        """Write what has arrived, and acknowledge it. After an error it comes again."""
        messages, self._arrived[:] = self._arrived[:CHUNK], self._arrived[CHUNK:]
        self._is_active = True
        deliveries = []
        for each in messages:
            about = each.delivery_info
            deliveries.append(inbox.Delivery(each.body, each.properties, about["routing_key"], about["exchange"]))
        self.take(deliveries)
        self.channel.basic_ack(messages[-1].delivery_info["delivery_tag"], multiple=True)
        self._gaps.look()

    @turn()
    def take(self, deliveries: Sequence[inbox.Delivery]) -> None:
        """Write the events that came, and act on the control messages; raise if the database is away."""
        for said in inbox.store(self._app, databases.home(), deliveries):
            try:
                self._gaps.hear(said)
            except Exception as exc:
                if inbox.is_outage(exc, databases.home()):
                    raise
                # It would come again and again.
                about = {"message_id": said.id, "app_id": said.source}
                inbox.put_aside(self._app, databases.home(), exc, inbox.Delivery("", about, said.name))


@dataclass
class Question:
    """What is missing after a number, up to another one, and when it is asked for next."""

    number: int
    last: int
    next_at: float
    #: When it was asked for first.
    since: float | None = None


class Gaps:
    """Asks for events that this service misses, in its consumer's thread, and sends other services those they miss."""

    def __init__(self, app: Celery, using: str, control: amqp.ControlLink) -> None:
        self._app, self._using, self._control = app, using, control
        #: For each source and name the number that the source has told, while we are behind it.
        self._told: dict[tuple[str, str], int] = {}
        self._questions: dict[tuple[str, str], Question] = {}
        #: When questions of other services were answered lately: by service, source, name and first number.
        self._answered: dict[tuple[str, str, str, int], float] = {}

    def hear(self, message: Message) -> None:
        """Take what :mod:`jobs.contrib.event_broker.control` has read."""
        source, says = message.source, message.data
        if message.name == amqp.HELLO:
            self._introduce(says["service"], says["patterns"])
        elif message.name == amqp.RESEND:
            self._resend(*(says[name] for name in ("source", "name", "first", "last", "service", "since")))
        elif amqp.origin_of(source)[0] == service():
            # No other service may say where our own numbers are.
            return
        elif message.name == amqp.POSITION:
            # It replaces the number from before, which another sender may have made up.
            self._told[source, says["name"]] = says["number"]
        elif question := self._questions.get((source, says["name"])):
            # Only for numbers that were asked for.
            why = f"{source} has them no longer" if says["is_lost"] else ""
            self._skip(source, says["name"], min(says["number"], question.last), why)

    @turn()
    def look(self) -> None:
        """Ask for what is missing, or go on where nothing is missing any more."""
        behind = Q(gap_since__isnull=False)
        if self._told:
            sources, names = zip(*self._told, strict=True)
            behind |= Q(source__in=sources, name__in=names)
        rows = {(row.source, row.name): row for row in Position.objects.using(self._using).filter(behind)}
        for key in self._told.keys() - rows.keys():
            rows[key] = Position(source=key[0], name=key[1])
        for key, row in rows.items():
            if self._told.get(key, 0) <= row.number:
                self._told.pop(key, None)
            if row.gap_since is not None or key in self._told:
                self._heal(row, self._told.get(key, 0))
        for key in self._questions.keys() - rows.keys():
            del self._questions[key]

    def _heal(self, row: Position, told: int) -> None:
        key, now = (row.source, row.name), time.monotonic()
        events = Event.objects.using(self._using).filter(PARKED, source=row.source, name=row.name)
        parked = events.aggregate(first=Min("number"))["first"]
        last = told if parked is None else parked - 1
        if last <= row.number:
            inbox.go_on(self._app, self._using, *key)
            return
        handlers = Subscription.objects.using(self._using)
        since = min(filter(None, (_wants_since(each, row.name) for each in handlers)), default=None)
        if since is None:
            # No handler misses it.
            self._told.pop(key, None)
            if not row._state.adding:
                self._skip(*key, last, "")
            return
        question = self._questions.get(key)
        if question is None or question.number != row.number:
            # Ask at once if nothing can be on its way: up to the number that the source has told, before its first
            # event here, and past the last number asked for. Numbers asked for are on their way as long as some come.
            is_first = question is None and (told > row.number or row.number == 0)
            is_sure = is_first or (question is not None and row.number >= question.last)
            question = self._questions[key] = Question(row.number, last, now if is_sure else now + OVERTAKEN)
        if question.since is not None and now > question.since + PATIENCE:
            if parked is not None:
                self._skip(*key, last, f"{row.source} did not answer for {PATIENCE:g} s")
                return
            # Nothing waits for it, and only the source knows whether there is such a number.
            self._told.pop(key, None)
            if row.number:
                text = "the events from %d on of %s from %s do not come: %s did not answer for %g s"
                words = (row.number + 1, row.name, row.source, row.source, PATIENCE)
                logger.warning(text, *words, extra={"action": "events_missing"})
        elif now >= question.next_at:
            question.next_at, question.since = now + AGAIN, question.since or now
            asked = {"source": row.source, "name": row.name, "first": row.number + 1, "last": question.last}
            about = {**asked, "service": service(), "since": since.isoformat()}
            if control.is_service(source := amqp.origin_of(row.source)[0]):
                self._control.say(amqp.RESEND, service(), about, amqp.RESEND, to=source)

    def _skip(self, source: str, name: str, number: int, why: str) -> None:
        """Go on without what is missing up to the number."""
        row = Position.objects.using(self._using).filter(source=source, name=name).first()
        before = 0 if row is None else row.number
        if number <= before:
            return
        if why and before:
            text = "the events %d to %d of %s from %s are lost: %s"
            logger.warning(text, before + 1, number, name, source, why, extra={"action": "events_lost"})
        inbox.go_on(self._app, self._using, source, name, number)

    # As a source

    def _introduce(self, to: str, patterns: list[str]) -> None:
        """Tell a service how far the names are that it reads."""
        if to == service():
            return
        for alias in conf().DATABASES:
            for source, name, number in publisher.positions(alias):
                if any(matches(pattern, name) for pattern in patterns):
                    about = {"name": name, "number": number}
                    self._control.say(amqp.POSITION, amqp.source_of(source, alias), about, name, to=to)

    def _resend(self, source: str, name: str, first: int, last: int, to: str, since: datetime | None) -> None:
        """Send events again, from the first one told since ``since``; and say that there is nothing before it."""
        own, alias = amqp.origin_of(source)
        if alias not in conf().DATABASES:
            return
        key, now = (to, source, name, first), time.monotonic()
        self._answered = {each: at for each, at in self._answered.items() if now < at + AGAIN / 2}
        if key in self._answered:
            # It asked again and again while no worker was here to hear it.
            return
        self._answered[key] = now
        position = Position.objects.using(alias).filter(source=own, name=name).first()
        given = 0 if position is None else position.number
        if given < first:
            self._control.say(amqp.POSITION, source, {"name": name, "number": given}, name, to=to)
            return
        last = min(last, given)
        rows = Event.objects.using(alias).filter(source=own, name=name, number__range=(first, last), received_at=None)
        oldest = rows.order_by("number").values_list("number", "at").first()
        begin = (rows.filter(at__gte=since) if since else rows).aggregate(number=Min("number"))["number"]
        if begin is not None:
            # To that service alone: other services have them, or began to read later. A sender that asks in its name
            # gets nothing that its queue is not bound to. Events that were not sent yet will be.
            some = rows.filter(number__gte=begin, sent_at__isnull=False).order_by("number")[:RESENT]
            count = self._control.send_again(to, (publisher.message_of(row, alias) for row in some))
            if count:
                text = "%d events %s are sent again to %s, which misses them"
                logger.info(text, count, name, to, extra={"action": "events_resent"})
        gone = last if begin is None else begin - 1
        if gone >= first:
            # Events that are pruned were told before the oldest event that is left.
            is_lost = oldest is None or (oldest[0] != first and (since is None or oldest[1] >= since))
            about = {"name": name, "number": gone, "is_lost": is_lost}
            self._control.say(amqp.GONE, source, about, name, to=to)


def _wants_since(row: Subscription, name: str) -> datetime | None:
    """Since when the handler has wanted events of the name without a break; None: it does not want them."""
    wanted = takewhile(lambda period: matches(period[0], name), periods(row))
    return min((since for _, _, since in wanted), default=None)
