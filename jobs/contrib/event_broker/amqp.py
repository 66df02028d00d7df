"""RabbitMQ between services: its exchange and queues, and a thread's connection to it.

Each event goes to the exchange under its name. Each service reads one queue, bound to the names that its handlers want.
A message for one service alone goes to a second exchange, under both names, to which the service's queue is bound. So
the broker's permissions decide who may read what, even if it is sent again.
"""

import random
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from amqp import Message, spec
from amqp.exceptions import AMQPError, FrameSyntaxError, NotFound
from kombu import Connection
from kombu.exceptions import OperationalError
from kombu.utils.url import maybe_sanitize_url

from jobs.conf import conf
from jobs.conf.logs import logger
from jobs.contrib.event_broker import wire
from jobs.models.fields import uuid7
from jobs.store import databases

EXCHANGE = "jobs.events"
DIRECT = f"{EXCHANGE}.direct"

#: What services say to each other beside the events (``receiver.py``): I read these names; my last number of a name is
#: this; send me these numbers again; I have nothing up to this number.
HELLO, POSITION, RESEND, GONE = CONTROL = [f"{EXCHANGE}.{name}" for name in ("hello", "position", "resend", "gone")]

#: Seconds: of silence after which each side takes the other for dead; to connect; to answer; to confirm all that was
#: published; between two attempts, about.
HEARTBEAT, CONNECT, ANSWER, CONFIRM, PAUSE = 20, 3.0, 5.0, 30.0, 1.0

#: The header of an event that is sent again to a service that misses it. An event for one service alone that does not
#: have this header is a replay.
RESENT = "jobs-resent"

#: The last frame of a connection that was closed.
CLOSE_OK = bytes.fromhex("01 0000 00000004 000a 0033 ce")

ERRORS = (OSError, AMQPError, OperationalError)
#: There is no such queue.
MISSING = NotFound
#: What py-amqp raises if a message's properties break the protocol, a time is out of range, or a table is very deep.
UNREADABLE = (ValueError, ArithmeticError, LookupError, RecursionError, struct.error, FrameSyntaxError)


def queue_of(service: str) -> str:
    """The queue that a service reads."""
    return f"events.{service}"


def direct_key(service: str, name: str) -> str:
    """The routing key of a message for one service alone; ``name`` may be a pattern, to bind the service's queue."""
    # The service is one word. Otherwise ``a.#`` would also fit messages for the service ``a.b``.
    return f"{service.replace('.', ':')}.{name}"


def declare_exchanges(channel: Any) -> None:
    for name in (EXCHANGE, DIRECT):
        channel.exchange_declare(name, "topic", durable=True, auto_delete=False)


def source_of(service: str, using: str) -> str:
    """The source of a database's events. Each database numbers its own, so all but the first one add their alias."""
    return service if using == databases.home() else f"{service}/{using}"


def origin_of(source: str) -> tuple[str, str]:
    """The service and its database that :func:`source_of` names."""
    service, _, alias = source.partition("/")
    return service, alias or databases.home()


class Link:
    """A thread's connection, which it opens again after each error. The broker confirms what is published."""

    #: What it does, for the log.
    who = ""

    def __init__(self) -> None:
        self.connection: Any = None
        self.channel: Any = None
        #: The number of the last message that was published; the numbers that wait for a confirm, or were refused.
        self._last = 0
        self.unconfirmed: set[int] = set()
        self.refused: set[int] = set()
        #: How many messages came back, because no queue was bound to them.
        self.returned = 0
        self._is_away = False

    def work(self, stopping: threading.Event) -> None:
        """Work until the event is set."""
        raise NotImplementedError

    def run(self, stopping: threading.Event) -> None:
        """Work until the event is set; begin again after each error of the broker or the database."""
        while not stopping.is_set():
            try:
                self.work(stopping)
            except ERRORS as exc:
                if not self._is_away:
                    url, text = maybe_sanitize_url(conf().EVENT_BROKER), f"{type(exc).__name__}: {exc}"
                    about = {"action": "event_broker_away", "who": self.who}
                    logger.warning("the broker of events %s, which %s: %s", url, self.who, text, extra=about)
                self._is_away = True
            except Exception as exc:
                databases.note_failure(exc, f"the thread that {self.who}", {"action": "events_error"})
            self.close()
            stopping.wait(PAUSE * random.uniform(0.5, 1.5))

    def open(self) -> None:
        """Connect, unless it is connected."""
        if self.connection is not None:
            return
        options = {"read_timeout": ANSWER, "write_timeout": ANSWER}
        made = Connection(conf().EVENT_BROKER, heartbeat=HEARTBEAT, connect_timeout=CONNECT, transport_options=options)
        # We take the connection below kombu's: kombu's own would connect again unasked, without our channel.
        self.connection = made.connect()
        self.channel = self.connection.channel()
        declare_exchanges(self.channel)
        if celery := conf().EVENT_CELERY_EXCHANGE:
            self.channel.exchange_declare(celery, "topic", durable=True, auto_delete=False)
            self.channel.exchange_bind(EXCHANGE, celery, "#")
        self.channel.confirm_select()
        self.channel.events["basic_ack"].add(self._note_confirmed)
        self.channel.events["basic_nack"].add(self._note_refused)
        self.channel.events["basic_return"].add(self._note_returned)
        self._last, self.unconfirmed, self.refused, self.returned = 0, set(), set(), 0

    def hang_up(self) -> None:
        """Close after the broker has read all. With unread messages, a plain close is a reset, which loses our data."""
        self.connection.send_method(spec.Connection.Close, "BsBB", (0, "", 0, 0))
        end = data = self.connection.sock.recv(2**16)
        while data and not end.endswith(CLOSE_OK):
            data = self.connection.sock.recv(2**16)
            end = (end + data)[-len(CLOSE_OK) :]

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            with suppress(Exception):
                connection.collect()

    def note_well(self) -> None:
        """Log that the broker is back, if it was away."""
        if self._is_away:
            logger.info("the broker of events is back, which %s", self.who, extra={"action": "event_broker_back"})
        self._is_away = False

    def publish(
        self, body: bytes, properties: Mapping[str, Any], key: str, exchange: str = EXCHANGE, returns: bool = False
    ) -> int:
        """Returns the number with which the broker confirms it. ``returns``: it comes back if no queue is bound."""
        rest = dict(properties)
        message = Message(body, application_headers=rest.pop("headers"), **rest)
        self._last += 1
        self.unconfirmed.add(self._last)
        self.channel.basic_publish(message, exchange=exchange, routing_key=key, mandatory=returns)
        return self._last

    def send(self, to: str, message: wire.Message, headers: Mapping[str, str], returns: bool = False) -> None:
        """Publish an event to one service alone, which gets it if its queue is bound to the name."""
        # Only a Celery task carries values without names.
        body, properties = (wire.encode_celery if message.args else wire.encode)(message)
        properties = {**properties, "headers": {**properties["headers"], **headers}}
        self.publish(body, properties, direct_key(to, message.name), DIRECT, returns)

    def say(self, what: str, source: str, data: dict[str, Any], key: str, to: str | None = None) -> None:
        """Send a control message: to all services that read ``key``, or to one of them."""
        body, properties = wire.encode(wire.Message(id=str(uuid7()), source=source, name=what, data=data))
        self.publish(body, properties, *((key,) if to is None else (direct_key(to, key), DIRECT)))

    def confirm(self, stopping: threading.Event) -> None:
        """Wait until the broker has, or refuses, all that was published, or until it is time to stop.

        Raises:
            OperationalError: it did not answer.
        """
        deadline = time.monotonic() + CONFIRM
        while self.unconfirmed:
            if stopping.is_set():
                return
            if time.monotonic() > deadline:
                raise OperationalError("it confirms nothing")
            self.drain(1.0)
        self.note_well()

    def drain(self, timeout: float) -> bool:
        """Take what comes next; False: nothing did."""
        try:
            self.connection.drain_events(timeout=timeout)
        except TimeoutError:
            self.connection.heartbeat_tick()
            return False
        return True

    def _note_confirmed(self, tag: int, multiple: bool) -> None:
        self.unconfirmed -= {each for each in self.unconfirmed if each <= tag} if multiple else {tag}

    def _note_returned(self, *args: Any) -> None:
        self.returned += 1

    def _note_refused(self, tag: int, multiple: bool) -> None:
        self.refused |= {each for each in self.unconfirmed if each <= tag} if multiple else {tag}
        self._note_confirmed(tag, multiple)


class ControlLink(Link):
    """Sends control messages over a connection of its own. Lost messages are sent again later.

    A consumer must not publish on its own connection: while RabbitMQ is short of memory or disk it reads nothing from
    connections that have published, and so would not see the consumer's acknowledgements.
    """

    def say(self, *said: Any, **to: Any) -> None:
        with self._trying():
            self.open()
            super().say(*said, **to)

    def send_again(self, to: str, messages: Iterable[wire.Message]) -> int:
        """Publish events to one service alone; returns how many. The service asks again for those that get lost."""
        count = 0
        with self._trying():
            self.open()
            for message in messages:
                self.send(to, message, {RESENT: "1"})
                count += 1
        return count

    def listen(self) -> None:
        """Take what the broker answers."""
        with self._trying():
            while self.connection is not None and self.drain(0):
                pass

    @contextmanager
    def _trying(self) -> Iterator[None]:
        try:
            yield
        except ERRORS:
            logger.debug("the broker of events does not hear", exc_info=True, extra={"action": "event_talk_lost"})
            self.close()
