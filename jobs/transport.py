"""A kombu transport over the database: ``broker_url = "jobs://"``, the broker when there is none.

Messages are rows: tasks that are no jobs, remote control, events. A consumer hides the row it took for :data:`LEASE`
seconds and keeps renewing while it listens, so a killed worker's messages come back by themselves; an acknowledgement
deletes the row. (With ``-P solo`` a long body keeps the consumer from listening: its message comes back, and may be
run twice.) Exchanges with several queues (remote control, events) fan out over :class:`jobs.models.Binding`.
"""

from __future__ import annotations

import json
import time
from queue import Empty
from typing import Any

import django
from django.apps import apps
from django.db import DatabaseError, InterfaceError, OperationalError, connections
from django.db.models.constants import OnConflict
from kombu.transport import virtual

import jobs

if not apps.ready and not apps.loading:
    # `celery inspect` and its like load the Celery app, and no Django.
    django.setup()

from jobs.databases import SideDatabase, home

#: Seconds for which a delivered message stays hidden after its consumer was last seen.
LEASE = 10.0

#: Seconds between two looks at the queues: right after a message, and after a quiet while.
BUSY_POLL, IDLE_POLL = 0.005, 0.1

#: Seconds after which a waiting consumer looks up, for a shutdown or for leases to renew.
LONGEST_WAIT = 0.5

#: The reply queues of the remote control that nobody read for this long are deleted, in seconds.
REPLY_TTL = 3600.0

DELETE, SHOW = "DELETE FROM jobs_message", "UPDATE jobs_message SET visible_at = {now}"


class QoS(virtual.QoS):
    """Acknowledging deletes the row; a rejected message becomes visible again."""

    channel: Channel

    def ack(self, delivery_tag: str) -> None:
        self.channel.change_held(delivery_tag, DELETE)
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        self.channel.change_held(delivery_tag, SHOW if requeue else DELETE)
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

    def _execute(self, sql: str, *params: Any) -> Any:
        """Execute one statement, in which ``{now}`` is the database's clock: the rows, or how many it changed."""
        if self.connection is None:
            # Somebody acknowledges what was delivered before the connection was lost; Celery knows this error.
            raise OperationalError("the channel is closed")
        side = self.connection.side
        with side.cursor() as cursor:
            cursor.execute(sql.format(now=side.now), params)
            return cursor.fetchall() if cursor.description else cursor.rowcount

    # Messages

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        self._execute(
            "INSERT INTO jobs_message (queue, priority, payload, visible_at, deliveries) VALUES (%s, %s, %s, {now}, 0)",
            queue,
            self._get_message_priority(message),
            json.dumps(message),
        )

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        found = self._execute(
            "SELECT id, payload, deliveries FROM jobs_message "
            "WHERE queue = %s AND visible_at <= {now} ORDER BY priority, id LIMIT 4",
            queue,
        )
        for key, payload, deliveries in found:
            # Of several consumers that saw the row, one finds `deliveries` unchanged.
            take = f"UPDATE jobs_message SET deliveries = deliveries + 1, visible_at = {{now}} + {LEASE}"
            if self.change_held(f"{key}.{deliveries}", DELETE if queue in self._unacknowledged_queues else take):
                message: dict[str, Any] = json.loads(payload)
                message["properties"]["delivery_tag"] = f"{key}.{deliveries + 1}"
                message["properties"]["delivery_info"]["redelivered"] = deliveries > 0
                return message
        raise Empty()

    def change_held(self, delivery_tag: str, change: str) -> bool:
        """Change or delete a message, unless it was delivered again since; False if it was."""
        key, deliveries = delivery_tag.split(".")
        return bool(self._execute(f"{change} WHERE id = %s AND deliveries = %s", int(key), int(deliveries)))

    def renew(self) -> None:
        """Keep what this consumer holds hidden from the others."""
        for tag in set(self.qos._delivered) - self.qos._dirty:
            self.change_held(tag, f"{SHOW} + {LEASE}")

    def _restore(self, message: Any) -> None:
        self.change_held(message.delivery_tag, SHOW)

    def _size(self, queue: str) -> int:
        [[count]] = self._execute("SELECT COUNT(*) FROM jobs_message WHERE queue = %s AND visible_at <= {now}", queue)
        return int(count)

    def _purge(self, queue: str) -> int:
        return int(self._execute("DELETE FROM jobs_message WHERE queue = %s", queue))

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
        operations = connections[home()].ops
        insert = operations.insert_statement(on_conflict=OnConflict.IGNORE)
        self._execute(
            f"{insert} jobs_binding (exchange, routing_key, pattern, queue) VALUES (%s, %s, %s, %s) "
            + operations.on_conflict_suffix_sql((), OnConflict.IGNORE, (), ()),
            exchange,
            routing_key or "",
            pattern or "",
            queue,
        )

    def get_table(self, exchange: str) -> list[tuple[str, str, str]]:
        sql = "SELECT routing_key, pattern, queue FROM jobs_binding WHERE exchange = %s"
        rows: list[tuple[str, str, str]] = self._execute(sql, exchange)
        return rows

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any) -> None:
        for _key, _pattern, queue in self.get_table(exchange):
            self._put(queue, message)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> None:
        if if_empty and self._size(queue):
            return
        self._execute("DELETE FROM jobs_binding WHERE queue = %s", queue)
        self._purge(queue)
        self.state.queue_bindings_delete(queue)


class Transport(virtual.Transport):
    Channel = Channel
    driver_type = driver_name = "jobs"
    default_connection_params: dict[str, Any] = {}

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

    def driver_version(self) -> str:
        return jobs.__version__

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
