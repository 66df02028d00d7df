"""What got lost between two services, although the broker had confirmed it: it is seen by a gap, and sent again.

A sender says how far its names are (POSITION). Who is behind asks for what is missing (RESEND), and gets it as before,
or hears that the source has it no longer (GONE). Who begins to read asks everybody how far they are (HELLO); what was
told before its handlers were there is not missing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime

from celery import Celery
from django.db.models import Min, Q

from jobs.conf import conf
from jobs.conf.logs import logger
from jobs.events import amqp, incoming, publisher, subscriptions
from jobs.events.outbox import service
from jobs.events.wire import Message
from jobs.models import PARKED, Event, Position, Subscription

#: Seconds: for which an event may be overtaken by those after it, until it is asked for; between two questions while
#: nothing comes; until the others go on without what is missing, if nobody answers.
OVERTAKEN, AGAIN, PATIENCE = 2.0, 5.0, 60.0


@dataclass
class Question:
    """What is missing after a number, and when it is asked for next."""

    number: int
    next_at: float
    #: When it was asked for first.
    since: float | None = None


class Gaps:
    """Sees to the gaps of this service; of one consumer's thread."""

    def __init__(self, app: Celery, using: str, voice: amqp.Voice) -> None:
        self._app, self._using, self._voice = app, using, voice
        #: What sources said of themselves, while we are behind it.
        self._told: dict[tuple[str, str], int] = {}
        self._questions: dict[tuple[str, str], Question] = {}

    def hear(self, message: Message) -> None:
        try:
            source, data = message.source, message.data
            if message.name == amqp.HELLO:
                self._introduce(data["service"], data["patterns"])
            elif message.name == amqp.RESEND:
                since = data["since"] and datetime.fromisoformat(data["since"])
                self._resend(data["source"], data["name"], data["from"], data["to"], data["service"], since)
            elif message.name == amqp.GONE:
                self._skip(
                    source, data["name"], int(data["number"]), data["is_lost"] and f"{source} has them no longer"
                )
            elif amqp.place_of(source)[0] != service():
                key = (source, data["name"])
                self._told[key] = max(int(data["number"]), self._told.get(key, 0))
        except (KeyError, TypeError, ValueError, AttributeError):
            extra = {"action": "events_talk_refused"}
            logger.warning("%s from %s is not understood", message.name, message.source, exc_info=True, extra=extra)

    def look(self) -> None:
        """See to what is missing."""
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
            while incoming.go_on(self._app, self._using, *key):
                pass
            return
        since = self._since(row.name)
        if since is None:
            self._skip(*key, last, "")
            return
        question = self._questions.get(key)
        if question is None or question.number != row.number:
            # What the source has said, and whatever it may have sent before we heard of it, cannot be on its way; but
            # what was asked for is, as long as some of it comes.
            is_sure = question is None and (told > row.number or row.number == 0)
            question = self._questions[key] = Question(row.number, now if is_sure else now + OVERTAKEN)
        if question.since is not None and now > question.since + PATIENCE:
            self._skip(*key, last, f"{row.source} did not answer for {PATIENCE:g} s")
        elif now >= question.next_at:
            question.next_at, question.since = now + AGAIN, question.since or now
            queue = amqp.queue_of(amqp.place_of(row.source)[0])
            asked = {"source": row.source, "name": row.name, "from": row.number + 1, "to": last}
            self._voice.say(amqp.RESEND, service(), queue, "", **asked, service=service(), since=since.isoformat())

    def _since(self, name: str) -> datetime | None:
        """Since when there is a handler for the name; None: there is none."""
        rows = Subscription.objects.using(self._using).values_list("pattern", "since")
        return min((since for pattern, since in rows if subscriptions.matches(pattern, name)), default=None)

    def _skip(self, source: str, name: str, number: int, why: str) -> None:
        """Go on without what is missing up to the number."""
        row = Position.objects.using(self._using).filter(source=source, name=name).first()
        before = 0 if row is None else row.number
        if number <= before:
            return
        if why and before:
            text = "the events %d to %d of %s from %s are lost: %s"
            logger.warning(text, before + 1, number, name, source, why, extra={"action": "events_lost"})
        while incoming.go_on(self._app, self._using, source, name, number):
            pass

    # As a source

    def _introduce(self, to: str, patterns: list[str]) -> None:
        """Say how far what it reads is."""
        if to == service():
            return
        for alias in conf().DATABASES:
            for source, name, number in publisher.positions(alias):
                if any(subscriptions.matches(pattern, name) for pattern in patterns):
                    told = {"name": name, "number": number}
                    self._voice.say(amqp.POSITION, amqp.source_of(source, alias), amqp.queue_of(to), "", **told)

    def _resend(self, source: str, name: str, first: int, last: int, to: str, since: datetime | None) -> None:
        """Have it sent again from the first number on that was told since then; say that nothing is before it."""
        own, alias = amqp.place_of(source)
        if alias not in conf().DATABASES:
            return
        rows = Event.objects.using(alias).filter(source=own, name=name, number__range=(first, last), received_at=None)
        oldest = rows.aggregate(number=Min("number"))["number"]
        begin = (rows.filter(at__gte=since) if since else rows).aggregate(number=Min("number"))["number"]
        if begin is not None:
            # What is not sent yet is on its way.
            count = rows.filter(number__gte=begin, sent_at__isnull=False).update(sent_at=None, is_resent=True)
            publisher.numbered.set()
            text = "%d events %s are sent again, which %s misses"
            logger.info(text, count, name, to, extra={"action": "events_resent"})
        gone = last if begin is None else begin - 1
        if gone >= first:
            is_lost = oldest is None or oldest > first
            self._voice.say(amqp.GONE, source, amqp.queue_of(to), "", name=name, number=gone, is_lost=is_lost)
