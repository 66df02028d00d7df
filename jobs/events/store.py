"""All SQL of events and of jobs that wait behind others, and all code that depends on the kind of database."""

import json
import uuid
from collections.abc import Collection, Iterable
from typing import Any

from django.db import connections, transaction
from django.db.models import Exists, OuterRef
from django.db.models.functions import Now

from jobs import store
from jobs.calling.outbox import hook_of
from jobs.conf import conf
from jobs.events.doors import WAKEUP
from jobs.events.services import service
from jobs.lifecycle.run import current_job
from jobs.models import LIVE, Job, State
from jobs.models.fields import uuid7
from jobs.models.values import check_size
from jobs.store import databases
from jobs.store.sessions import quoted, session_of

_LIVE = "state IN ('scheduled', 'ready', 'running')"

#: Whether a job waits behind another one. The first condition is that of the index.
_WAITS = f"order_key IS NOT NULL AND order_position IS NOT NULL AND {_LIVE} AND state = 'scheduled'"

#: What the clock asks of each database (``Extension.looks``).
LOOKS = {
    "is_told": "jobs_event WHERE relayed_at IS NULL AND received_at IS NULL",
    "is_behind": f"jobs_job WHERE {{rare}} AND {_WAITS}",
}


# Events

#: The columns of an event that is told of, and their types: in a SELECT, PostgreSQL cannot infer those of parameters.
_TOLD = {"uuid": "uuid", "name": "text", "version": "int", "source": "text"}
_TOLD |= {"data": "json", "order_key": "text", "headers": "jsonb", "job": "uuid"}


def insert(
    using: str, name: str, version: int, data: dict[str, Any], order_key: str | None, headers: dict[str, Any]
) -> uuid.UUID:
    """Write an event into the caller's transaction; returns its id. ``ValueError``: it is too large.

    Until this transaction ends, no other transaction writes an event of the same name and order key. So the ids of a
    key are in the order of the commits. (SQLite has one writer.)
    """
    key, job, text = uuid7(), current_job(), json.dumps(data)
    check_size(text, f"the event {name} has", conf().MAX_ARGS_BYTES)
    more = [json.dumps(headers) if headers else None, job and job.pk.hex]
    values: list[Any] = [key.hex, name, version, service(), text, order_key, *more]
    source = f"VALUES ({', '.join(['%s'] * len(_TOLD))})"
    locked = f"{name} {order_key}".replace("\0", " ")
    if order_key is not None and store.of(using).has_notify:
        lock = "pg_advisory_xact_lock(hashtextextended(%s, 7215))"
        source = f"SELECT {', '.join(f'%s::{cast}' for cast in _TOLD.values())} FROM {lock}"
        values.append(locked)
    elif order_key is not None:
        store.of(using).lock_names([f"told {locked}"])
    with connections[using].cursor() as cursor:
        cursor.execute(f"INSERT INTO jobs_event ({', '.join(_TOLD)}) {source}", values)
    _notify_after(using)
    return key


def _notify_after(using: str) -> None:
    """Notify the relays after the commit of the current transaction."""
    if (hook := hook_of(connections[using])) is not None:
        hook.queues.append(WAKEUP)
        if not connections[using].in_atomic_block:
            hook()


# Jobs that wait behind others

#: The keys are sorted, so that two transactions that lock several of them cannot deadlock.
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(key, 7216)) FROM unnest({keys}::text[]) AS key"

#: Release the first job that waits, unless another job of the key is live and does not wait.
RELEASE = f"""
UPDATE jobs_job SET state = 'ready', run_at = {{now}}, order_position = NULL
WHERE id = (SELECT id FROM jobs_job WHERE order_key = {{key}} AND {_WAITS} ORDER BY order_position LIMIT 1) AND {_WAITS}
  AND NOT EXISTS (SELECT 1 FROM jobs_job WHERE order_key = {{key}} AND order_position IS NULL AND {_LIVE})
RETURNING queue
"""

#: Up to 1000 keys whose live jobs all wait behind others: one step through the index for each key with such jobs.
_STUCK = f"""
WITH RECURSIVE line (name) AS (
    SELECT min(order_key) FROM jobs_job WHERE {_WAITS}
    UNION ALL
    SELECT (SELECT min(order_key) FROM jobs_job WHERE {_WAITS} AND order_key > line.name) FROM line
    WHERE line.name IS NOT NULL
)
SELECT name FROM line WHERE name IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM jobs_job WHERE order_key = line.name AND order_position IS NULL AND {_LIVE}
) LIMIT 1000
"""

#: Those of the given keys that have a live job: one step through the index for each key, however many jobs it has. As
#: a join, or without the order, the query might read all jobs of the keys.
_BUSY = """
WITH line (name) AS (VALUES {keys}) SELECT name FROM line
WHERE (SELECT 1 FROM jobs_job WHERE order_key = line.name AND {live} ORDER BY order_position LIMIT 1) IS NOT NULL
"""


def busy(using: str, keys: Collection[str]) -> set[str]:
    """Those of the keys that have a live job: one that runs, is to run, or waits behind another job."""
    sql = _BUSY.format(keys=", ".join(["(%s)"] * len(keys)), live=_LIVE)
    return {key for (key,) in databases.ask(using, sql, *keys)}


def stuck(using: str) -> list[str]:
    """The keys whose live jobs all wait behind others, so that no end of a job will release the next one."""
    return [key for (key,) in databases.ask(using, _STUCK)]


def lock(using: str, keys: Iterable[str]) -> None:
    """No other process releases a job of these keys until the transaction ends. (SQLite has one writer.)"""
    if store.of(using).has_notify:
        databases.ask(using, _LOCK.format(keys="%s"), sorted(keys))
    else:
        store.of(using).lock_names([f"line {key}" for key in keys])


def release_first(using: str, key: str) -> str | None:
    """Release the first waiting job of the key, if no other job of it is live; returns the job's queue."""
    if store.of(using).has_notify:
        return _release_postgresql(using, key)
    if not store.of(using).has_one_writer:
        return _release_mysql(using, key)
    # First without the write lock: most keys have no waiting job.
    if not databases.ask(using, f"SELECT 1 FROM jobs_job WHERE order_key = %s AND {_WAITS} LIMIT 1", key):
        return None
    rows = databases.ask(using, RELEASE.format(key="%s", now=databases.NOW_SQLITE), key, key)
    return rows[0][0] if rows else None


def _release_postgresql(using: str, key: str) -> str | None:
    """In one transaction. The second statement sees what was committed before the first one got the lock."""
    name = quoted(key)
    lock, release = _LOCK.format(keys=f"ARRAY[{name}]"), RELEASE.format(key=name, now="statement_timestamp()")
    return session_of(using).send(f"{lock}; {release}")


def _release_mysql(using: str, key: str) -> str | None:
    line = Job.objects.using(using).filter(order_key=key, order_position__isnull=False, state=State.SCHEDULED)
    others = Job.objects.using(using).filter(order_key=OuterRef("order_key"), order_position=None, state__in=LIVE)
    with transaction.atomic(using=using):
        lock(using, [key])
        first = line.order_by("order_position").values_list("pk", "queue").first()
        if first is None:
            return None
        mine = line.filter(~Exists(others), pk=first[0])
        return first[1] if mine.update(state=State.READY, run_at=Now(), order_position=None) else None
