"""PostgreSQL's store over psycopg 3, where the INSERT of a call is prepared."""

from __future__ import annotations

import json
from typing import Any

from jobs.contrib.psycopg3.session import Preparing
from jobs.models import Job
from jobs.store import databases
from jobs.store.postgresql import PostgreSQL

#: After how many calls over one connection it is worth while to prepare the INSERT.
OFTEN = 5

_JSON = frozenset({"args", "kwargs", "options"})


class Prepared(PostgreSQL):
    def insert(self, job: Job, columns: tuple[str, ...], is_frozen: bool) -> int:
        connection: Any = self.connection
        # Django's own cursor shows what it executes.
        if connection.queries_logged or connection.execute_wrappers or not self._is_often():
            return super().insert(job, columns, is_frozen)
        connection.validate_no_broken_transaction()
        values = [text_of(name, job.__dict__[name]) for name in columns]
        session = self.session
        assert isinstance(session, Preparing)
        return session.insert(self.insert_sql(columns, is_frozen), values)

    def _is_often(self) -> bool:
        if not databases.has_libpq(self.connection):
            return False
        raw: Any = self.connection.connection
        raw._jobs_calls = calls = getattr(raw, "_jobs_calls", 0) + 1
        return bool(calls > OFTEN)


def text_of(name: str, value: Any) -> str | None:
    """A value as PostgreSQL reads it."""
    if name in _JSON:
        return json.dumps(value) if value or name != "options" else None
    return None if value is None else str(value)
