"""Publish the events of this service to the broker, in their order, and say how far they are.

One worker does it at a time: ``Relay.node`` names it for as long as it lives. If it dies after it has published an
event and before it has noted that, the next worker publishes the event again; services recognize it by its id.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now
from django.utils.translation import gettext

from jobs.conf import conf
from jobs.conf.logs import logger
from jobs.conf.syncpoints import reach
from jobs.contrib.event_broker import amqp, wire
from jobs.contrib.event_broker.models import Position
from jobs.contrib.shared_connections.turns import turn
from jobs.events.models import ARGS, TRACE, UNSENT, Event, Relay
from jobs.events.services import BrokerError
from jobs.lifecycle.worker_state import worker_state
from jobs.models import Node
from jobs.store import databases

#: Events that are published before their confirms are awaited.
CHUNK = 200

#: Seconds until the position of a name is told again, at first and at most; each pause is twice the one before.
TELL, TELL_RARELY = 2.0, 600.0

#: Seconds until the events of a name that a full queue refused are published again.
FULL = 5.0

#: Events were given their numbers.
numbered = threading.Event()


def give_numbers(using: str, events: Sequence[Event]) -> dict[str, Any]:
    """Give each event the next number of its name, so that other services see what they miss; an update of the rows."""
    found: dict[tuple[str, str], Position] = {}
    for event in events:
        key = (event.source, event.name)
        if key not in found:
            found[key], _ = Position.objects.using(using).get_or_create(source=event.source, name=event.name)
        found[key].number += 1
        event.number = found[key].number
    for position in found.values():
        position.save(using=using, update_fields=["number"])
    # Django needs a hundred times as long for 500 of Case() and When().
    numbers = " ".join(f"WHEN {event.pk} THEN {event.number}" for event in events)
    return {"number": RawSQL(f"CASE id {numbers} END", [])}


def may_send(using: str) -> bool:
    """Whether this worker is the one that sends. It becomes that one if no living worker is."""
    rows = Relay.objects.using(using).filter(pk=1)
    if rows.filter(node=worker_state.node).exists():
        return True
    alive = Node.objects.using(using).filter(dead_at=None)
    is_free = Q(node=None) | ~Exists(alive.filter(pk=OuterRef("node")))
    free = rows.filter(is_free, Exists(alive.filter(pk=worker_state.node)))
    return free.exists() and bool(free.update(node=worker_state.node))


def _unsent(using: str, source: Any, name: Any) -> QuerySet[Event]:
    """The events of a name that are not published, in their order, along an index of such events alone."""
    return Event.objects.using(using).filter(UNSENT, source=source, name=name).order_by("sent_at", "number")


def _positions(using: str, has_unsent: bool) -> QuerySet[Position]:
    """The names that have unpublished events, or those that have none: one step through that index for each name."""
    # A subquery with a limit cannot become a join, for which the database might read all that waits.
    first = Subquery(_unsent(using, OuterRef("source"), OuterRef("name")).values("number")[:1])
    return Position.objects.using(using).annotate(first=first).filter(first__isnull=not has_unsent)


def positions(using: str) -> list[tuple[str, str, int]]:
    """The source, name and last number of each name, if the broker has all its events that were told here."""
    events = Event.objects.using(using)
    last = events.filter(source=OuterRef("source"), name=OuterRef("name"), number=OuterRef("number"))
    rows = _positions(using, False).filter(Exists(last.filter(received_at=None, sent_at__isnull=False)))
    return list(rows.values_list("source", "name", "number"))


class Publisher(amqp.Link):
    who = "sends them"

    def __init__(self) -> None:
        super().__init__()
        #: For each source and name: the number that was told last, when it is told again, and the pause after that.
        self._told: dict[tuple[str, str], tuple[int, float, float]] = {}
        #: For each database and name whose events a queue refused: when they are published again.
        self._full_until: dict[tuple[str, str], float] = {}

    def work(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            numbered.clear()
            with turn():
                mine = [alias for alias in conf().DATABASES if databases.everywhere(may_send, [alias])]
            for alias in mine:
                while self._send(alias, stopping):
                    pass
                self._tell(alias, stopping)
            if not mine:
                self.close()
            elif self.connection is not None:
                self.drain(0)
            numbered.wait(conf().POLL_INTERVAL)

    def close(self) -> None:
        super().close()
        # Until the next connection the broker may lose what it had.
        self._told.clear()

    def _send(self, using: str, stopping: threading.Event) -> int:
        with turn():
            rows = self._next(using)
            if not rows or stopping.is_set() or not may_send(using):
                return 0
        self.open()
        reach("before_publish")
        # Our services read Celery's exchange as well. Celery's services do not recognize an event by its id, so what is
        # published again and again must not reach them.
        celery = conf().EVENT_CELERY_EXCHANGE
        published: dict[int, Event] = {}
        try:
            for row in rows:
                exchange = amqp.EXCHANGE if row.was_refused or not celery else celery
                encode = wire.encode_celery if exchange == celery else wire.encode
                published[self.publish(*encode(message_of(row, using)), row.name, exchange)] = row
            self.confirm(stopping)
            reach("after_publish")
        finally:
            # Only what was refused is published again.
            done = [row for number, row in published.items() if number not in self.unconfirmed | self.refused]
            refused = [row for number, row in published.items() if number in self.refused]
            with turn():
                Event.objects.using(using).filter(pk__in=[row.pk for row in done]).update(sent_at=Now())
                self._note_full(using, {row.name for row in done}, refused)
        return len(published)

    def _next(self, using: str) -> list[Event]:
        """The next events to publish, without those for which a queue is full."""
        now = time.monotonic()
        full = [name for (alias, name), at in self._full_until.items() if alias == using and at > now]
        if not full:
            return list(Event.objects.using(using).filter(UNSENT).order_by("id")[:CHUNK])
        # Name by name: names whose queue is full may have many events, and they are not read.
        found: list[Event] = []
        some = list(_positions(using, True).exclude(name__in=full))
        for position in some:
            found += _unsent(using, position.source, position.name)[: max(1, CHUNK // len(some))]
        return found

    def _note_full(self, using: str, sent: set[str], refused: list[Event]) -> None:
        full = {row.name for row in refused}
        for name in sent - full:
            self._full_until.pop((using, name), None)
        for name in sorted(full):
            if (using, name) not in self._full_until:
                text = "a queue is full, so the events %s are published again every %g s until it takes them"
                logger.warning(text, name, FULL, extra={"action": "events_refused"})
            self._full_until[using, name] = time.monotonic() + FULL
        Event.objects.using(using).filter(pk__in=[row.pk for row in refused]).update(was_refused=True)

    def _tell(self, using: str, stopping: threading.Event) -> None:
        """Say how far each name is, so that a service that is behind learns it: at once, and then ever more rarely."""
        self.open()
        with turn():
            told = positions(using)
        for source, name, number in told:
            source = amqp.source_of(source, using)
            last, due, pause = self._told.get((source, name), (0, 0.0, TELL))
            if number != last:
                due, pause = 0.0, TELL
            if time.monotonic() >= due:
                self.say(amqp.POSITION, source, {"name": name, "number": number}, name)
                self._told[source, name] = (number, time.monotonic() + pause, min(2 * pause, TELL_RARELY))
        self.confirm(stopping)


def message_of(row: Event, using: str) -> wire.Message:
    return wire.Message(
        id=str(row.uuid),
        source=amqp.source_of(row.source, using),
        name=row.name,
        version=row.version,
        time=row.at,
        key=row.order_key,
        number=row.number,
        trace={name: row.headers[name] for name in TRACE if name in row.headers},
        data=row.data,
        args=row.headers.get(ARGS, []),
    )


def send_to(service: str, events: Sequence[Event], using: str, again: str | None) -> int:
    """Publish events to one service alone, and wait until the broker has them.

    Returns:
        How many reached its queue: those of names that its handlers want.

    Raises:
        ValueError: no service of that name has a queue.
        BrokerError: the broker is away, or refuses.
    """
    link, queue = amqp.Link(), amqp.queue_of(service)
    try:
        link.open()
        try:
            link.channel.queue_declare(queue, passive=True)
        except amqp.MISSING:
            says = gettext("the broker has no queue %(queue)s: no service of that name reads events")
            raise ValueError(says % {"queue": queue}) from None
        for row in events:
            link.send(service, replace(message_of(row, using), again=again), {}, returns=True)
        link.confirm(threading.Event())
        if link.refused:
            raise BrokerError("the queue is full")
        return len(events) - link.returned
    except amqp.ERRORS as exc:
        raise BrokerError(str(exc)) from exc
    finally:
        link.close()
