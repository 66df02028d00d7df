"""What Celery's result backend keeps that no job's row has: one table, written outside of all transactions.

On SQLite it is in the second file: a body holds the write lock of the main one. Elsewhere the thread's connection
writes it, unless it is in a transaction, which might roll back, and would hide the row until its end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from django.db import connections
from django.db.models.constants import OnConflict

from jobs.conf import conf
from jobs.store import of
from jobs.store.databases import SideDatabase, home, patiently

_COLUMNS = ["id", "meta", "lease", "expires_at"]


#: How a stored value begins after ``AbortableAsyncResult.abort()`` was called for its task.
_ABORTED = '{"status": "ABORTED%'

#: Whether the stored value is of no job, or of an earlier run; and whether it is of the same run.
_EARLIER = "jobs_stored_result.lease IS NULL OR jobs_stored_result.lease < excluded.lease"
_SAME = "jobs_stored_result.lease = excluded.lease"


def packed(key: str, meta: str, expires: float | None, lease: int) -> bytes:
    """A run's state, for the worker's supervisor to write (:func:`write_said`): it costs the run no statement."""
    return json.dumps([key, meta, expires, lease], ensure_ascii=False).encode()


def write_said(side: SideDatabase, text: bytes) -> None:
    """Write what was packed, unless a later run has written, or a person has asked this run to end (``abort()``).

    MariaDB cannot check that in the same statement: there the last writer wins.
    """
    key, meta, expires, lease = json.loads(text)
    sql, values = _upsert(), [key, meta, lease, expires or None]
    if of(home()).compares:
        sql += f" WHERE {_EARLIER} OR ({_SAME} AND jobs_stored_result.meta NOT LIKE %s)"
        values.append(_ABORTED)
    side.execute(sql, *values)


def _upsert() -> str:
    suffix = connections[home()].ops.on_conflict_suffix_sql(_COLUMNS, OnConflict.UPDATE, _COLUMNS[1:], ["id"])
    return f"INSERT INTO jobs_stored_result ({', '.join(_COLUMNS)}) VALUES (%s, %s, %s, {{now}} + %s) {suffix}"


class Store:
    """The table as a process (or a thread) reads and writes it."""

    def __init__(self) -> None:
        self._side = SideDatabase()

    def read(self, keys: Iterable[str]) -> dict[str, tuple[str, int | None]]:
        """What was written, by its key, with the lease of the job's run that wrote it. Unknown keys are left out."""
        wanted = list(keys)
        found: dict[str, tuple[str, int | None]] = {}
        for start in range(0, len(wanted), conf().BATCH):
            some = wanted[start : start + conf().BATCH]
            sql = f"SELECT id, meta, lease FROM jobs_stored_result WHERE id IN ({_marks(some)})"
            found |= {key: (meta, lease) for key, meta, lease in self._execute(sql, *some)}
        return found

    def write(
        self, key: str, meta: str, expires: float | None, lease: int | None = None, keep_open: bool = False
    ) -> None:
        """Write a value under its key, and replace what was there.

        Parameters:
            expires: the seconds for which it is kept; None or 0: for ever.
            keep_open: keep a separate connection open until :meth:`close`: the same job will write again.
        """
        sql = _upsert()
        if lease is not None and of(home()).compares:
            # Do not overwrite a later run's value: this run is a zombie then.
            sql += f" WHERE {_EARLIER} OR {_SAME}"
        self._execute(sql, key, meta, lease, expires or None, writes=True, keep_open=keep_open)

    def delete(self, key: str) -> None:
        self._execute("DELETE FROM jobs_stored_result WHERE id = %s", key, writes=True)

    def close(self) -> None:
        self._side.close()

    def _execute(self, sql: str, *params: Any, writes: bool = False, keep_open: bool = False) -> Any:
        alias = home()
        main: Any = connections[alias]
        # A database in memory has no second file.
        one_writer = of(alias).has_one_writer
        is_apart = one_writer and not main.is_in_memory_db()
        if writes and not one_writer:
            is_apart = main.in_atomic_block or not main.get_autocommit()
        if is_apart:
            try:
                return self._side.execute(sql, *params)
            finally:
                if not keep_open:
                    self._side.close()

        def execute() -> Any:
            with main.cursor() as cursor:
                cursor.execute(sql.format(now=of(alias).epoch), params)
                return cursor.fetchall() if cursor.description else cursor.rowcount

        return patiently(alias, execute)


def prune(database: SideDatabase) -> None:
    """Delete what has expired, in batches. Race: a row is written anew at this moment, and stays."""
    late = "FROM jobs_stored_result WHERE expires_at < {now}"
    while keys := [key for (key,) in database.execute(f"SELECT id {late} LIMIT %s", conf().BATCH)]:
        database.execute(f"DELETE {late} AND id IN ({_marks(keys)})", *keys)


def _marks(values: list[Any]) -> str:
    return ", ".join(["%s"] * len(values))
