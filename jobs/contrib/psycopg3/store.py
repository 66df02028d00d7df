"""PostgreSQL's store over psycopg 3: the INSERT of a call is prepared, and a body's transactions are counted."""

from __future__ import annotations

import json
from typing import Any

from jobs.contrib.psycopg3.session import Preparing
from jobs.models import Job
from jobs.store.postgresql import PostgreSQL
from jobs.store.sessions import has_begun

#: After how many calls over one connection it is worth while to prepare the INSERT.
OFTEN = 5

_JSON = frozenset({"args", "kwargs", "options"})


class Prepared(PostgreSQL):
    def insert(self, job: Job, columns: tuple[str, ...], is_frozen: bool) -> int:
        connection: Any = self.connection
        # Django's own cursor shows what it executes.
        if connection.queries_logged or connection.execute_wrappers or not isinstance(self.session, Preparing):
            return super().insert(job, columns, is_frozen)
        raw = connection.connection
        raw._jobs_calls = calls = getattr(raw, "_jobs_calls", 0) + 1
        if calls <= OFTEN:
            return super().insert(job, columns, is_frozen)
        connection.validate_no_broken_transaction()
        values = [text_of(name, job.__dict__[name]) for name in columns]
        return self.session.insert(self.insert_sql(columns, is_frozen), values)

    def prepare_body(self) -> None:
        if self.connection.in_atomic_block:
            count_begins(self.connection)
        super().prepare_body()

    def has_ended(self) -> bool:
        return has_ended(self.connection)


def text_of(name: str, value: Any) -> str | None:
    """A value as PostgreSQL reads it."""
    if name in _JSON:
        return json.dumps(value) if value or name != "options" else None
    return None if value is None else str(value)


def count_begins(connection: Any) -> None:
    """Count from now on how many transactions psycopg begins. psycopg2 does not show it."""
    raw = connection.connection
    if not hasattr(raw, "_get_tx_start_command"):
        return
    if not hasattr(raw, "_jobs_begun"):
        begin = raw._get_tx_start_command

        def counted() -> bytes:
            raw._jobs_begun += 1
            return begin()

        raw._get_tx_start_command = counted
    raw._jobs_begun = int(has_begun(connection))


def has_ended(connection: Any) -> bool:
    begun = getattr(connection.connection, "_jobs_begun", 0)
    return bool(begun > 1 or (begun == 1 and not has_begun(connection)))
