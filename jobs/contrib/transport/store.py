"""The broker's messages and bindings as rows, and all statements about them. It needs no kombu."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from typing import Any

from django.db import connections
from django.db.models.constants import OnConflict

from jobs.store.databases import SideDatabase, home

#: Seconds for which a delivered message stays hidden after its consumer was last seen.
LEASE = 10.0

#: Seconds after which unread replies of the remote control are deleted.
REPLY_TTL = 3600.0

#: Changes of a message (see :func:`change`): its consumer acknowledges it, or other consumers see it again.
DELETE, SHOW = "DELETE FROM jobs_message", "UPDATE jobs_message SET visible_at = {now}"


def put(side: SideDatabase, queue: str, priority: int, payload: str) -> None:
    names = "queue, priority, payload, visible_at, deliveries"
    side.execute(f"INSERT INTO jobs_message ({names}) VALUES (%s, %s, %s, {{now}}, 0)", queue, priority, payload)


def first(side: SideDatabase, queue: str) -> Any:
    """The next few messages of a queue: the id, the payload, and how often it was delivered."""
    rows = "FROM jobs_message WHERE queue = %s AND visible_at <= {now} ORDER BY priority, id LIMIT 4"
    return side.execute(f"SELECT id, payload, deliveries {rows}", queue)


def take() -> str:
    """The change with which a consumer takes a message for ``LEASE`` seconds."""
    return f"UPDATE jobs_message SET deliveries = deliveries + 1, visible_at = {{now}} + {LEASE}"


def hide() -> str:
    """The change with which a consumer keeps its message for ``LEASE`` seconds more."""
    return f"{SHOW} + {LEASE}"


def change(side: SideDatabase, what: str, key: int, deliveries: int) -> bool:
    """Change or delete a message. False: it was delivered again meanwhile, and is left as it is."""
    return bool(side.execute(f"{what} WHERE id = %s AND deliveries = %s", key, deliveries))


def size(side: SideDatabase, queue: str) -> int:
    [[found]] = side.execute("SELECT COUNT(*) FROM jobs_message WHERE queue = %s AND visible_at <= {now}", queue)
    return int(found)


def purge(side: SideDatabase, queue: str) -> int:
    """Delete what waits. What a consumer holds stays, as at other brokers: its process may die."""
    return int(side.execute("DELETE FROM jobs_message WHERE queue = %s AND visible_at <= {now}", queue))


def delete(side: SideDatabase, queue: str) -> int:
    return int(side.execute("DELETE FROM jobs_message WHERE queue = %s", queue))


def has_message(side: SideDatabase, queues: Collection[str]) -> bool:
    """Whether any of the queues has a message. It is one statement for all of them."""
    some = ", ".join(["%s"] * len(queues))
    there = f"SELECT 1 FROM jobs_message WHERE queue IN ({some}) AND visible_at <= {{now}} LIMIT 1"
    return bool(queues and side.execute(there, *queues))


def bind(side: SideDatabase, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
    operations = connections[home()].ops
    insert = operations.insert_statement(on_conflict=OnConflict.IGNORE)
    suffix = operations.on_conflict_suffix_sql((), OnConflict.IGNORE, (), ())
    sql = f"{insert} jobs_binding (exchange, routing_key, pattern, queue) VALUES (%s, %s, %s, %s) {suffix}"
    side.execute(sql, exchange, routing_key, pattern, queue)


def bindings(side: SideDatabase, exchange: str) -> Any:
    return side.execute("SELECT routing_key, pattern, queue FROM jobs_binding WHERE exchange = %s", exchange)


def unbind(side: SideDatabase, queue: str) -> None:
    side.execute("DELETE FROM jobs_binding WHERE queue = %s", queue)


# Maintenance


def are_in(using: str) -> bool:
    """Whether the messages are in this database, or in the file beside it."""
    return using == home()


def count() -> int:
    with closing(SideDatabase()) as side:
        [[number]] = side.execute("SELECT count(*) FROM jobs_message")
        return int(number)


def delete_all() -> int:
    with closing(SideDatabase()) as side:
        return int(side.execute("DELETE FROM jobs_message"))


def prune_replies() -> int:
    """Delete the queues of remote control and events that have no reader any more; return how many messages went."""
    stale = "FROM jobs_message WHERE visible_at < {now} - %s AND (queue LIKE %s OR queue LIKE %s)"
    params = (REPLY_TTL, "%.celery.pidbox", "celeryev.%")
    # The pruning thread has no open transaction.
    with closing(SideDatabase(is_apart=False)) as side:
        side.execute(f"DELETE FROM jobs_binding WHERE queue IN (SELECT queue {stale})", *params)
        return int(side.execute(f"DELETE {stale}", *params))
