"""A session of PostgreSQL over psycopg2 (:class:`jobs.store.sessions.Session`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from psycopg2.extensions import adapt
from psycopg2.extras import register_default_json

from jobs.store.sessions import NOTIFY, Session


class PlainSession(Session):
    """psycopg2 binds in the client, prepares nothing, and tracks its transaction itself."""

    BEGIN = COMMIT = ""

    def __init__(self, connection: Any) -> None:
        self.raw, self._connection = connection.connection, connection
        with self._execute("SELECT pg_backend_pid()") as cursor:
            self.is_direct = cursor.fetchone()[0] == self.raw.info.backend_pid
        self.backend = self.raw.info.backend_pid if self.is_direct else None

    @contextmanager
    def _execute(self, sql: str, values: Any = None, as_text: bool = False) -> Iterator[Any]:
        # Django's, which knows the time zone.
        with self._connection.wrap_database_errors, self._connection.create_cursor() as cursor:
            if as_text:
                # Else psycopg2 decodes JSON.
                register_default_json(cursor, loads=str)
            cursor.execute(sql, values)
            yield cursor

    def fetch(self, sql: str, values: Any) -> list[Any]:
        with self._execute(sql, values) as cursor:
            return list(cursor.fetchall())

    def execute(self, sql: str, values: Any) -> int:
        with self._execute(sql, values) as cursor:
            return int(cursor.rowcount)

    insert = execute

    def notify(self, channel: str, payloads: Iterable[str]) -> None:
        sql = NOTIFY.decode().replace("$1", "%s").replace("$2", "%s")
        self.fetch(sql, [channel, json.dumps([*payloads], ensure_ascii=False)])

    def prepared(self, statement: str) -> str:
        return ""

    def literal(self, text: str) -> str:
        quoted = adapt(text)
        quoted.prepare(self.raw)
        return str(quoted.getquoted().decode())

    def send(self, sql: str) -> str | None:
        with self._execute(sql, as_text=True) as cursor:
            row = cursor.fetchone() if cursor.description else None
            return None if row is None or row[0] is None else str(row[0])
