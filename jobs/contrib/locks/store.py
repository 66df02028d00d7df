"""The rows of locks, written outside of any job's or caller's transaction."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.db import IntegrityError, OperationalError, connections

from jobs.store.databases import SideDatabase, home, is_conflict

_READ = """
SELECT {now}, job, lease, token, COALESCE(fence, 0), COALESCE(expires_at, 0)
FROM (SELECT 1) AS one LEFT JOIN jobs_lock ON jobs_lock.key = %s
"""
_KEEP = "UPDATE jobs_lock SET job = NULL, expires_at = {now} + %s WHERE jobs_lock.key = %s AND token = %s"
_OLD = "FROM jobs_lock WHERE expires_at < {now} - %s"
_READ_OLD = f"SELECT jobs_lock.key, job, lease, expires_at {_OLD} AND expires_at > %s ORDER BY expires_at LIMIT %s"


class Row(NamedTuple):
    """A lock as it is now; without a row the token is None."""

    #: The database's time, in seconds since 1970, as ``expires_at``.
    now: float
    job: uuid.UUID | None
    lease: int | None
    token: str | None
    fence: int
    expires_at: float


def read(side: SideDatabase, key: str) -> Row:
    [[now, job, lease, token, fence, expires_at]] = side.execute(_READ, key)
    return Row(float(now), job and uuid.UUID(str(job)), lease, token, fence, expires_at)


def is_running(side: SideDatabase, job: uuid.UUID, lease: int) -> bool:
    """Whether this run of a job still lasts."""
    return bool(
        side.execute("SELECT 1 FROM jobs_job WHERE id = %s AND state = 'running' AND lease = %s", job.hex, lease)
    )


def take(
    side: SideDatabase, key: str, row: Row, job: uuid.UUID | None, lease: int, token: str, fence: int, until: float
) -> bool:
    """Race: several processes saw that it is free. Only one finds the row as it was read, or inserts it."""
    names = ("job", "lease", "token", "fence", "expires_at", connections[home()].ops.quote_name("key"))
    values: list[Any] = [job and job.hex, lease, token, fence, until, key]
    if row.token is None:
        sql = f"INSERT INTO jobs_lock ({', '.join(names)}) VALUES (%s, %s, %s, %s, %s, %s)"
    else:
        changes = ", ".join(f"{name} = %s" for name in names[:-1])
        sql = f"UPDATE jobs_lock SET {changes} WHERE jobs_lock.key = %s AND token = %s AND expires_at = %s"
        values += [row.token, row.expires_at]
    try:
        return bool(side.execute(sql, *values))
    except (IntegrityError, OperationalError) as exc:
        # A server whose default is REPEATABLE READ reports the conflict as an OperationalError.
        if not isinstance(exc, IntegrityError) and not is_conflict(exc):
            raise
        return False


def keep(side: SideDatabase, key: str, token: str, seconds: float) -> bool:
    """Renew the lock of a block outside of jobs, or give a lock back: the row stays a while, with the last fence."""
    return bool(side.execute(_KEEP, seconds, key, token))


def read_old(side: SideDatabase, age: float, behind: float, limit: int) -> list[tuple[str, uuid.UUID | None, Any, Any]]:
    """Locks that ended so many seconds ago, the oldest first: key, job, lease, end."""
    rows = side.execute(_READ_OLD, age, behind, limit)
    return [(key, job and uuid.UUID(str(job)), lease, end) for key, job, lease, end in rows]


def delete_old(side: SideDatabase, age: float, keys: Sequence[str]) -> None:
    """Race: a lock is taken, or renewed, at this moment. Then it is not that old any more, and stays."""
    side.execute(f"DELETE {_OLD} AND jobs_lock.key IN ({', '.join(['%s'] * len(keys))})", age, *keys)
