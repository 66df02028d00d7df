"""A kombu transport over the database: ``broker_url = "jobs://"``, the broker when there is none.

Messages are rows: tasks that are no jobs, remote control, events. A consumer hides the row it took for ``store.LEASE``
seconds and renews that while it listens, so a killed worker's messages come back by themselves. An acknowledgement
deletes the row. (With ``-P solo`` a long body keeps the consumer from listening, and its message may be run twice.)
"""

from __future__ import annotations

import time
from contextlib import suppress
from queue import Empty
from typing import Any

import django
from django.apps import apps
from django.db import DatabaseError, InterfaceError, OperationalError
from kombu.transport import virtual
from kombu.utils import json

if not apps.ready and not apps.loading:
    # Commands such as `celery inspect` load the Celery app, but do not set up Django.
    django.setup()

from jobs.contrib.transport import store
from jobs.store.databases import SideDatabase

#: Seconds between two looks at the queues: right after a message, and after a quiet while. The last one: seconds after
#: which a waiting consumer returns, to check for a shutdown and to renew leases.
BUSY_POLL, IDLE_POLL, LONGEST_WAIT = 0.005, 0.2, 0.5


class QoS(virtual.QoS):
    """Acknowledging deletes the row; a rejected message becomes visible again."""

    channel: Channel

    def ack(self, delivery_tag: str) -> None:
        self.channel.change_held(delivery_tag, store.DELETE)
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        self.channel.change_held(delivery_tag, store.SHOW if requeue else store.DELETE)
        super().ack(delivery_tag)


class Channel(virtual.Channel):
    QoS = QoS
    supports_fanout = True
    do_restore = True
    #: 0 is the highest priority, as on Redis.
    default_priority = 0

    #: None when it is closed.
    connection: Transport | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unacknowledged_queues: set[str] = set()

    @property
    def side(self) -> SideDatabase:
        if self.connection is None:
            # Celery acknowledges a message from before the connection was lost; it handles this error.
            raise OperationalError("the channel is closed")
        return self.connection.side

    # Messages

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        store.put(self.side, queue, self._get_message_priority(message), json.dumps(message))

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        for key, payload, deliveries in store.first(self.side, queue):
            # Race: several consumers saw the row. Only one of them finds `deliveries` unchanged.
            what = store.DELETE if queue in self._unacknowledged_queues else store.take()
            if store.change(self.side, what, key, deliveries):
                message: dict[str, Any] = json.loads(payload)
                message["properties"]["delivery_tag"] = f"{key}.{deliveries + 1}"
                message["properties"]["delivery_info"]["redelivered"] = deliveries > 0
                return message
        raise Empty()

    def change_held(self, delivery_tag: str, what: str) -> None:
        """Change or delete a message that this consumer has."""
        store.change(self.side, what, *map(int, delivery_tag.split(".")))

    def renew(self) -> None:
        """Keep the messages of this consumer hidden from other consumers."""
        for tag in set(self.qos._delivered) - self.qos._dirty:
            self.change_held(tag, store.hide())

    def _restore(self, message: Any) -> None:
        self.change_held(message.delivery_tag, store.SHOW)

    def _size(self, queue: str) -> int:
        return store.size(self.side, queue)

    def _purge(self, queue: str) -> int:
        return store.purge(self.side, queue)

    # Consumers

    def basic_consume(self, queue: str, no_ack: bool, *args: Any, **kwargs: Any) -> None:
        if no_ack:
            self._unacknowledged_queues.add(queue)
        super().basic_consume(queue, no_ack, *args, **kwargs)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        if no_ack:
            self._unacknowledged_queues.add(queue)
        return super().basic_get(queue, no_ack, **kwargs)

    # Exchanges

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        store.bind(self.side, exchange, routing_key or "", pattern or "", queue)

    def get_table(self, exchange: str) -> Any:
        return store.bindings(self.side, exchange)

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any) -> None:
        for *_, bound in self.get_table(exchange):
            self._put(bound, message)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> None:
        if if_empty and self._size(queue):
            return
        store.unbind(self.side, queue)
        store.delete(self.side, queue)
        self.state.queue_bindings_delete(queue)


class Transport(virtual.Transport):
    Channel = Channel
    driver_type = driver_name = "jobs"
    default_connection_params: dict[str, Any] = {}

    #: Errors after which kombu may open the connection again and retry.
    connection_errors = virtual.Transport.connection_errors + (OperationalError, InterfaceError)
    channel_errors = virtual.Transport.channel_errors + (DatabaseError,)

    implements = virtual.Transport.implements.extend(
        asynchronous=False, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.side = SideDatabase()
        self._renewed = time.monotonic()
        #: Seconds until the next look. It is kept from one wait to the next, so that a quiet consumer stays quiet.
        self._pause = BUSY_POLL

    def establish_connection(self) -> Any:
        # Raise while the database is away: kombu tries again after a pause. Celery's consumer, which would be the first
        # to notice, tries again at once.
        self.side.execute("SELECT 1")
        return super().establish_connection()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        # Renewing has to happen here and not in _get, which is not called while the prefetch is full.
        if time.monotonic() - self._renewed > store.LEASE / 4:
            for channel in self.channels:
                channel.renew()
            self._renewed = time.monotonic()
        deadline = None if timeout is None else time.monotonic() + min(timeout, LONGEST_WAIT)
        while True:
            # One statement looks at all queues; kombu would send one for each.
            queues = {queue for channel in self.channels for queue in channel._active_queues}
            if store.has_message(self.side, sorted(queues)):
                with suppress(Empty):
                    self.cycle.get(self._deliver, timeout=timeout)
                    self._pause = BUSY_POLL
                    return
            left = self._pause if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("no message")
            time.sleep(min(left, self._pause))
            self._pause = min(self._pause * 1.5, IDLE_POLL)

    def close_connection(self, connection: Any) -> None:
        super().close_connection(connection)
        self.side.close()
