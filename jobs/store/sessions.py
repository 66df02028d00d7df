"""Connections to PostgreSQL for the statements that every job needs. Their statements are not in Django's log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import connections

from jobs import extensions
from jobs.store import databases

#: The statement's text is always the same: ``pg_stat_statements`` keeps each text of a NOTIFY.
NOTIFICATION = "SELECT pg_notify({}, told) FROM json_array_elements_text({}) AS told"


class Session:
    """A connection, with any driver that Django knows. For psycopg 3 an extension has a faster one."""

    def __init__(self, connection: Any) -> None:
        self.connection, self.raw = connection, connection.connection
        # A pooler tells its clients another pid than the server does. Then rescue must not end this server process:
        # by then it may serve another client, which would also get the statements prepared on it.
        [[pid]] = self.fetch("SELECT pg_backend_pid()")
        self.is_direct: bool = pid == self.raw.info.backend_pid
        self.backend: int | None = pid if self.is_direct else None

    @contextmanager
    def _executed(self, sql: str, values: Any) -> Iterator[Any]:
        # Django's, which knows the time zone.
        with self.connection.wrap_database_errors, self.connection.create_cursor() as cursor:
            cursor.execute(sql, values)
            yield cursor

    def fetch(self, sql: str, values: Any = None) -> list[Any]:
        with self._executed(sql, values) as cursor:
            return list(cursor.fetchall())

    def execute(self, sql: str, values: Any) -> int:
        with self._executed(sql, values) as cursor:
            return int(cursor.rowcount)

    def notify(self, channel: str, payloads: Iterable[str]) -> None:
        self.fetch(NOTIFICATION.format("%s", "%s"), [channel, json.dumps([*payloads], ensure_ascii=False)])

    def send(self, sql: str) -> str | None:
        """Execute statements without values, in one message and one transaction; returns a value of the last, as text.

        A statement has to make text of JSON itself.
        """
        with self._executed(sql, None) as cursor:
            # Psycopg 3 begins with what the first one found, and psycopg2 has nothing but what the last one found.
            while databases.has_libpq(self.connection) and cursor.nextset():
                pass
            row = cursor.fetchone() if cursor.description else None
            return None if row is None or row[0] is None else str(row[0])

    def send_last(self, types: str, template: str, values: Sequence[str], commits: bool, is_held: bool) -> str | None:
        """Execute the last statement of a transaction. A session may send the COMMIT with it; this one does not.

        Parameters:
            template: the statement, with places for the values, which are literals of these ``types``.
            commits: nothing is left to do before the commit.
            is_held: a test wants to stop before the commit.
        """
        return self.send(template.format(*values))


def session_of(using: str) -> Session:
    connection: Any = connections[using]
    if connection.connection is None:
        connection.ensure_connection()
    session: Session | None = getattr(connection, "_jobs_session", None)
    # A pool of Django's may have given this wrapper another connection, or this connection to another wrapper.
    if session is None or session.raw is not connection.connection or session.connection is not connection:
        with connection.wrap_database_errors:
            session = connection._jobs_session = extensions.instead(Session)(connection)
    return session


def has_begun(connection: Any) -> bool:
    """Whether the transaction has begun: the driver sends BEGIN before the first statement, and not earlier."""
    return databases.status(connection) != databases.IDLE


def quoted(text: str) -> str:
    """The text as a literal of a statement without values."""
    text = text.replace("'", "''")
    # With standard_conforming_strings off a backslash would escape the quote after it.
    return "E'" + text.replace("\\", "\\\\") + "'" if "\\" in text else f"'{text}'"


def literal(text: str) -> str:
    """The text as a literal of a statement whose values are passed separately."""
    return quoted(text).replace("%", "%%")
