"""Markers: an effect that is committed once per key, however many jobs or callers ask for it.

A marker is a row that is inserted in the transaction of its effects. Of two transactions with the same key the second
one waits until the first one commits (then it has nothing to do) or rolls back (then it goes on): the database's own
unique index decides, at every isolation level. What a marker does not do: it says nothing about mails and HTTP calls,
which no transaction takes back (``jobs.effects``), and it does not keep others from starting (``jobs.locks``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import OperationalError, connections
from django.db.models.functions import Now
from django.db.transaction import TransactionManagementError

from jobs import current, databases, lifecycle
from jobs.conf import conf
from jobs.errors import Busy, IdempotencyMismatch
from jobs.keys import joined
from jobs.models import Job, Marker

_COLUMNS = "key, kind, fingerprint, job, created_at, expires_at"

#: Insert, or take over what expired; no row: somebody else's marker is in force.
_TAKE = f"""
INSERT INTO jobs_marker ({_COLUMNS}) {{values}}
ON CONFLICT (key, kind) DO UPDATE SET
    fingerprint = excluded.fingerprint, job = excluded.job,
    created_at = excluded.created_at, expires_at = excluded.expires_at
WHERE jobs_marker.expires_at <= {{now}} RETURNING 1
"""

_SQLITE_NOW = "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')"
_SQLITE = _TAKE.format(
    now=_SQLITE_NOW,
    values=f"VALUES (%s, %s, %s, %s, {_SQLITE_NOW}, strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s || ' seconds'))",
)

#: One round trip: the bound of the wait is set, holds for the INSERT, and is taken back.
_POSTGRES = """
WITH bound AS MATERIALIZED (
    SELECT current_setting('lock_timeout') AS before, set_config('lock_timeout', %s, true) AS during
), taken AS ({take}), done AS (SELECT count(*) AS rows FROM taken)
SELECT done.rows, set_config('lock_timeout', CASE WHEN done.rows >= 0 THEN bound.before END, true) FROM bound, done
""".format(
    take=_TAKE.format(
        now="statement_timestamp()",
        values="SELECT %s, %s, %s, %s::uuid, statement_timestamp(), "
        "statement_timestamp() + %s * interval '1 second' FROM bound",
    )
)

#: PostgreSQL: the wait for a lock took longer than lock_timeout.
LOCK_NOT_AVAILABLE = "55P03"


@contextmanager
def once(*key: Any, using: str | None = None) -> Iterator[bool]:
    """Do something once: true for the first transaction that commits with this key, false for all others.

    ::

        with transaction.atomic(), once("welcome", user.pk) as first:
            if first:
                user.credits += 10

    The marker is part of the surrounding transaction. A second caller waits for the first, at most
    ``JOBS["MARKER_WAIT"]`` seconds. An exception that leaves the block has the whole transaction rolled back, even if
    somebody catches it: a marker without its effect must not be committed.

    Parameters:
        key: text and whole numbers; ``once("welcome", 5)`` is ``"welcome:5"``.
        using: the database alias; by default the one of the running job, else the one for jobs.

    Raises:
        TransactionManagementError: there is no transaction around it.
        Busy: the first one does not come to its end; in a task's body the job comes back later, and uses no attempt.
        TypeError, ValueError: the key cannot be kept.
    """
    name = joined(key, "once()")
    job = current.job()
    alias = using or (job._state.db if job is not None else None) or databases.job_alias(None)
    connection = connections[alias]
    if not connection.in_atomic_block:
        raise TransactionManagementError(
            "once() is part of a transaction, and there is none: write `with transaction.atomic(), once(...)`, or "
            "leave atomic=False out of the task"
        )
    first = take(name, Marker.Kind.ONCE, alias, job.pk if job is not None else None)
    try:
        yield first
    except BaseException:
        if first:
            connection.needs_rollback = True
        raise


def earlier(job: Job, fingerprint: str) -> Job | None:
    """Leave the marker of a run, as the first statement of its transaction; the job that did so before, if any.

    Raises:
        Busy: another run of the key does not come to its end.
        IdempotencyMismatch: the job that left the marker had other arguments.
    """
    assert job.marker_key is not None
    using = str(job._state.db)
    if take(job.marker_key, Marker.Kind.TASK, using, job.pk, fingerprint):
        return None
    marker = Marker.objects.using(using).get(key=job.marker_key, kind=Marker.Kind.TASK)
    if marker.fingerprint != fingerprint:
        raise IdempotencyMismatch(
            f"the job {marker.job} had the key {marker.key!r} with other arguments: a key must name all that makes two "
            "calls different"
        )
    # Only its id is left if somebody deleted it by hand.
    source: Job | None = Job.objects.using(using).filter(pk=str(marker.job)).first()
    return source or Job(pk=marker.job)


def take(key: str, kind: str, using: str, job: Any, fingerprint: str = "") -> bool:
    """Leave a marker in the current transaction; False: there is one.

    Race: an uncommitted marker of the same key; the INSERT waits for its transaction to end.
    """
    connection = connections[using]
    keep = conf().MARKER_RETENTION
    if connection.vendor == "postgresql":
        sql, params = _POSTGRES, [f"{conf().MARKER_WAIT * 1000:.0f}ms", key, kind, fingerprint, job, keep]
    elif connection.vendor == "sqlite":
        sql = _SQLITE
        params = [key, kind, fingerprint, job and job.hex, None if keep is None else f"{keep:+.3f}"]
    else:
        return _take_portably(key, kind, using, job, fingerprint)
    try:
        with connection.cursor() as cursor:
            cursor.execute(sql, params)
            row = cursor.fetchone()
    except OperationalError as exc:
        if databases.sqlstate(exc) != LOCK_NOT_AVAILABLE:
            raise
        # The transaction is aborted, whoever catches this.
        connection.needs_rollback = True
        raise Busy(f"another transaction is at {key!r}, and did not end within {conf().MARKER_WAIT:g} s") from exc
    return bool(row and row[0])


def _take_portably(key: str, kind: str, using: str, job: Any, fingerprint: str) -> bool:
    keep = conf().MARKER_RETENTION
    values = {
        "fingerprint": fingerprint,
        "job": job,
        "created_at": Now(),
        "expires_at": None if keep is None else lifecycle.now_plus(keep),
    }
    markers = Marker.objects.using(using)
    _, created = markers.get_or_create(key=key, kind=kind, defaults=values)
    return created or markers.filter(key=key, kind=kind, expires_at__lte=Now()).update(**values) == 1


def delete_expired(using: str, limit: int) -> int:
    """Delete one batch. Race: whoever takes an expired marker over moves its time; the DELETE compares it again."""
    late = Marker.objects.using(using).filter(expires_at__lte=Now())
    keys = list(late.values_list("pk", flat=True)[:limit])
    return late.filter(pk__in=keys)._raw_delete(using) if keys else 0
