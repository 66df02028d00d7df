"""A kombu transport over the database: ``broker_url = "jobs://"``, the broker when there is none.

Messages are rows. A consumer hides the row it took for :data:`LEASE` seconds and keeps renewing while
it listens, so a killed worker's messages come back by themselves; an acknowledgement deletes the row. (With
``-P solo`` a long body keeps the consumer from listening: its message comes back while it runs. Jobs ignore the
second copy; a stock task may run twice.)
Exchanges with several queues (remote control, events) fan out over :class:`jobs.models.Binding`.
"""

from __future__ import annotations

import json
import time
from queue import Empty
from typing import Any

import django
from django.apps import apps
from django.db import DatabaseError, InterfaceError, OperationalError
from kombu.transport import virtual

if not apps.ready and not apps.loading:
    # `celery inspect` and its like load the Celery app, and no Django.
    django.setup()

from jobs.databases import SideDatabase

#: Seconds for which a delivered message stays hidden after its consumer was last seen.
LEASE = 10.0

#: Seconds between two looks at the queues: right after a message, and after a quiet while.
BUSY_POLL, IDLE_POLL = 0.005, 0.1

#: Seconds after which a waiting consumer looks up, for a shutdown or for leases to renew.
LONGEST_WAIT = 0.5

#: The reply queues of the remote control that nobody read for this long are deleted, in seconds.
REPLY_TTL = 3600.0


class QoS(virtual.QoS):
    """Acknowledging deletes the row; a rejected message becomes visible again."""

    channel: Channel

    def ack(self, delivery_tag: str) -> None:
        self.channel.delete_message(delivery_tag)
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if requeue:
            self.channel.show_message(delivery_tag)
        else:
            self.channel.delete_message(delivery_tag)
        virtual.QoS.ack(self, delivery_tag)

    def held(self) -> list[str]:
        """The delivery tags that this consumer has and did not acknowledge."""
        return [tag for tag in list(self._delivered) if tag not in self._dirty]


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
            # Somebody acknowledges what was delivered before the connection was lost; Celery knows this error.
            raise OperationalError("the channel is closed")
        return self.connection.side

    # Messages

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        with self.side.cursor() as cursor:
            cursor.execute(
                "INSERT INTO jobs_message (queue, priority, payload, visible_at, deliveries) "
                f"VALUES (%s, %s, %s, {self.side.now}, 0)",
                [queue, self._get_message_priority(message), json.dumps(message)],
            )

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        with self.side.cursor() as cursor:
            cursor.execute(
                "SELECT id, payload, deliveries FROM jobs_message "
                f"WHERE queue = %s AND visible_at <= {self.side.now} ORDER BY priority, id LIMIT 4",
                [queue],
            )
            for key, payload, deliveries in cursor.fetchall():
                if queue in self._unacknowledged_queues:
                    cursor.execute("DELETE FROM jobs_message WHERE id = %s", [key])
                else:
                    # Of several consumers that saw the row, one finds `deliveries` unchanged.
                    cursor.execute(
                        f"UPDATE jobs_message SET deliveries = %s, visible_at = {self.side.now} + %s "
                        "WHERE id = %s AND deliveries = %s",
                        [deliveries + 1, LEASE, key, deliveries],
                    )
                if cursor.rowcount != 1:
                    continue
                message: dict[str, Any] = json.loads(payload)
                message["properties"]["delivery_tag"] = f"{key}.{deliveries + 1}"
                message["properties"]["delivery_info"]["redelivered"] = deliveries > 0
                return message
        raise Empty()

    def delete_message(self, delivery_tag: str) -> None:
        key, deliveries = delivery_tag.split(".")
        with self.side.cursor() as cursor:
            cursor.execute("DELETE FROM jobs_message WHERE id = %s AND deliveries = %s", [int(key), int(deliveries)])

    def show_message(self, delivery_tag: str) -> None:
        """Let others see a message that this consumer held."""
        key, deliveries = delivery_tag.split(".")
        with self.side.cursor() as cursor:
            cursor.execute(
                f"UPDATE jobs_message SET visible_at = {self.side.now} WHERE id = %s AND deliveries = %s",
                [int(key), int(deliveries)],
            )

    def renew(self) -> None:
        """Keep what this consumer holds hidden from the others."""
        with self.side.cursor() as cursor:
            for tag in self.qos.held():
                key, deliveries = tag.split(".")
                cursor.execute(
                    f"UPDATE jobs_message SET visible_at = {self.side.now} + %s WHERE id = %s AND deliveries = %s",
                    [LEASE, int(key), int(deliveries)],
                )

    def _restore(self, message: Any) -> None:
        self.show_message(message.delivery_tag)

    def _size(self, queue: str) -> int:
        with self.side.cursor() as cursor:
            cursor.execute(
                f"SELECT COUNT(*) FROM jobs_message WHERE queue = %s AND visible_at <= {self.side.now}", [queue]
            )
            return int(cursor.fetchone()[0])

    def _purge(self, queue: str) -> int:
        with self.side.cursor() as cursor:
            cursor.execute("DELETE FROM jobs_message WHERE queue = %s", [queue])
            return int(cursor.rowcount)

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
        values = [exchange, routing_key or "", pattern or "", queue]
        with self.side.cursor() as cursor:
            cursor.execute(
                "SELECT 1 FROM jobs_binding WHERE exchange = %s AND routing_key = %s AND pattern = %s AND queue = %s",
                values,
            )
            if cursor.fetchone() is None:
                try:
                    cursor.execute(
                        "INSERT INTO jobs_binding (exchange, routing_key, pattern, queue) VALUES (%s, %s, %s, %s)",
                        values,
                    )
                except DatabaseError:
                    # Another process bound the same queue in between; the unique constraint kept one.
                    cursor.execute("SELECT 1 FROM jobs_binding WHERE exchange = %s AND queue = %s", [exchange, queue])
                    if cursor.fetchone() is None:
                        raise

    def get_table(self, exchange: str) -> list[tuple[str, str, str]]:
        with self.side.cursor() as cursor:
            cursor.execute("SELECT routing_key, pattern, queue FROM jobs_binding WHERE exchange = %s", [exchange])
            return [(row[0], row[1], row[2]) for row in cursor.fetchall()]

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any) -> None:
        for _key, _pattern, queue in self.get_table(exchange):
            self._put(queue, message)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> None:
        if if_empty and self._size(queue):
            return
        with self.side.cursor() as cursor:
            cursor.execute("DELETE FROM jobs_binding WHERE queue = %s", [queue])
        self._purge(queue)
        self.state.queue_bindings_delete(queue)


class Transport(virtual.Transport):
    Channel = Channel
    driver_type = "jobs"
    driver_name = "jobs"

    #: What kombu may retry after opening the connection again.
    connection_errors = virtual.Transport.connection_errors + (OperationalError, InterfaceError)
    channel_errors = virtual.Transport.channel_errors + (DatabaseError,)

    implements = virtual.Transport.implements.extend(
        asynchronous=False, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.side = SideDatabase()
        self._renewed = time.monotonic()

    @property
    def default_connection_params(self) -> dict[str, Any]:
        return {}

    def driver_version(self) -> str:
        from jobs import __version__

        return __version__

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        # Renewing has to happen here and not in _get, which is not called while the prefetch is full.
        if time.monotonic() - self._renewed > LEASE / 4:
            for channel in self.channels:
                channel.renew()
            self._renewed = time.monotonic()
        deadline = None if timeout is None else time.monotonic() + min(timeout, LONGEST_WAIT)
        pause = BUSY_POLL
        while True:
            try:
                self.cycle.get(self._deliver, timeout=timeout)
                return
            except Empty:
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutError("no message") from None
                time.sleep(pause)
                pause = min(pause * 1.5, IDLE_POLL)

    def close_connection(self, connection: Any) -> None:
        super().close_connection(connection)
        self.side.close()


def prune_replies(side: SideDatabase) -> int:
    """Delete the queues of remote control and events that nobody reads any more; return how many messages went."""
    stale = f"visible_at < {side.now} - %s AND (queue LIKE %s OR queue LIKE %s)"
    params = [REPLY_TTL, "%.celery.pidbox", "celeryev.%"]
    with side.cursor() as cursor:
        cursor.execute(
            f"DELETE FROM jobs_binding WHERE queue IN (SELECT queue FROM jobs_message WHERE {stale})", params
        )
        cursor.execute(f"DELETE FROM jobs_message WHERE {stale}", params)
        return int(cursor.rowcount)
