"""Read the service's queue, write what comes, and acknowledge it after that commit.

All workers of a service read it, and the broker gives the messages to one of them at a time, so that they stay in
their order.
"""

from __future__ import annotations

import struct
import threading
import time
from typing import Any

from amqp.exceptions import FrameSyntaxError
from celery import Celery

from jobs.conf.logs import logger
from jobs.database import databases
from jobs.events import amqp, incoming
from jobs.events.gaps import Gaps
from jobs.events.outbox import service
from jobs.models import Subscription

#: Messages of one transaction, and how many the broker sends ahead.
BATCH, AHEAD = 200, 400

#: Seconds for which messages are gathered after the first one, at the most; and without another one.
GATHER, QUIET = 0.05, 0.005

#: Seconds between two looks at what is missing and what the handlers want; and until all is declared again, because
#: somebody may have taken it away.
LOOK, RENEW = 1.0, 30.0

#: What py-amqp raises on properties that are not as its protocol says, or times out of range.
UNREADABLE = (ValueError, ArithmeticError, LookupError, struct.error, FrameSyntaxError)


class Receiver(amqp.Link):
    who = "brings those of others"

    def __init__(self, app: Celery) -> None:
        super().__init__()
        self._app, self._arrived = app, list[Any]()
        self._patterns: set[str] = set()
        self._queue = amqp.queue_of(service())
        self._voice = amqp.Voice()
        self._gaps = Gaps(app, databases.home(), self._voice)
        #: Whether messages come to this worker, or to another one of the service.
        self._is_active = False
        #: The number of the last message that came over this connection.
        self._tag = 0

    def work(self, stopping: threading.Event) -> None:
        self.open()
        self._arrived.clear()
        self._is_active, self._tag = False, 0
        self._declare()
        self._greet()
        self.channel.basic_qos(0, AHEAD, False)
        self.channel.basic_consume(self._queue, callback=self._note)
        self.note_well()
        renew_at, look_at = time.monotonic() + RENEW, 0.0
        while not stopping.is_set():
            if time.monotonic() >= renew_at:
                renew_at = time.monotonic() + RENEW
                self._declare()
                self._greet()
            try:
                if self.drain(max(0.0, min(LOOK, look_at - time.monotonic()))):
                    self._gather()
            except UNREADABLE as exc:
                self._put_aside(exc)
                return
            while self._arrived:
                self._store()
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + LOOK
                self._voice.listen()
                if self._wanted() != self._patterns:
                    self._declare()
                    self._greet()
                if self._is_active:
                    self._gaps.look()

    def close(self) -> None:
        super().close()
        self._voice.close()

    def _wanted(self) -> set[str]:
        rows = Subscription.objects.using(databases.home()).filter(service=service())
        return set(rows.values_list("pattern", flat=True))

    def _declare(self) -> None:
        """Have the queue, and what the handlers want brought to it."""
        wanted = self._wanted()
        arguments = {"x-single-active-consumer": True}
        self.channel.exchange_declare(amqp.EXCHANGE, "topic", durable=True, auto_delete=False)
        self.channel.queue_declare(self._queue, durable=True, auto_delete=False, arguments=arguments)
        for pattern in sorted({amqp.HELLO, *wanted}):
            self.channel.queue_bind(self._queue, amqp.EXCHANGE, pattern)
        for pattern in sorted(self._patterns - wanted):
            self.channel.queue_unbind(self._queue, amqp.EXCHANGE, pattern)
        for text, patterns in (("gets %s", wanted - self._patterns), ("gets %s no longer", self._patterns - wanted)):
            if patterns:
                about = {"action": "events_bound", "queue": self._queue}
                logger.info(f"the queue %s {text}", self._queue, ", ".join(sorted(patterns)), extra=about)
        self._patterns = wanted

    def _greet(self) -> None:
        self._voice.say(amqp.HELLO, service(), amqp.HELLO, service=service(), patterns=sorted(self._patterns))

    def _note(self, message: Any) -> None:
        self._arrived.append(message)
        self._tag = message.delivery_info["delivery_tag"]

    def _put_aside(self, exc: Exception) -> None:
        """A message that cannot be read would come again and again. It is the one after the last that could."""
        while self._arrived:
            self._store()
        incoming.put_aside(self._app, databases.home(), exc)
        self.channel.basic_ack(self._tag + 1)

    def _gather(self) -> None:
        deadline = time.monotonic() + GATHER
        while self._arrived and len(self._arrived) < BATCH and time.monotonic() < deadline and self.drain(QUIET):
            pass

    def _store(self) -> None:
        """Write what has arrived, and acknowledge it. After an error it comes again."""
        messages, self._arrived[:] = self._arrived[:BATCH], self._arrived[BATCH:]
        self._is_active = True
        for said in incoming.store(self._app, databases.home(), [_delivery(each) for each in messages]):
            self._gaps.hear(said)
        self._gaps.look()
        self.channel.basic_ack(messages[-1].delivery_info["delivery_tag"], multiple=True)


def _delivery(message: Any) -> incoming.Delivery:
    about = message.delivery_info
    return incoming.Delivery(message.body, message.properties, about["routing_key"], is_direct=not about["exchange"])
