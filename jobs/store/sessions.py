"""Connections to PostgreSQL that bypass Django's cursor, for the statements that every job needs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from django.db import connections

from jobs import extensions
from jobs.store import databases

NOTIFY = b"SELECT pg_notify($1, told) FROM json_array_elements_text($2) AS told"

#: Seconds for which the server keeps its plans: a plan made for an empty table would read all of a full one.
PLANNED = 1.0


class Session:
    """A connection to PostgreSQL with its own cursor: Django's binds values in the client, and prepares nothing.

    For another driver than psycopg 3 an extension has a class of its own.
    """

    #: Raises Django's exceptions; it belongs to the wrapper that has the connection at the moment.
    wrap: Any

    #: Around the last statement of a transaction, in one message.
    BEGIN, COMMIT = "BEGIN; ", "; COMMIT"

    def __init__(self, connection: Any) -> None:
        import psycopg

        self.raw = raw = connection.connection
        self.cursor = psycopg.Cursor(raw)
        # A pooler tells its clients another pid than the server does. Then rescue must not end this server process:
        # by then it may serve another client, which would also get the statements prepared on it.
        pid = self.cursor.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
        self.is_direct = pid is not None and pid[0] == raw.info.backend_pid
        self.backend: int | None = raw.info.backend_pid if self.is_direct else None
        if self.is_direct and raw.prepare_threshold is None:
            # Django makes psycopg prepare nothing at all; now it prepares where ``prepare=`` asks for it.
            raw.prepare_threshold = sys.maxsize
        self._plan_at = 0.0
        self._prepared = 0
        self._is_busy = False

    def fetch(self, sql: str, values: Any) -> list[Any]:
        with self.wrap:
            # Not if the last look found nothing: a worker that waits costs as little as it can.
            if self.is_direct and self._is_busy and time.monotonic() > self._plan_at:
                self.send("DISCARD PLANS")
                self._plan_at = time.monotonic() + PLANNED
            rows = self.cursor.execute(sql, values, prepare=self.is_direct).fetchall()
            self._is_busy = bool(rows)
            return rows

    def execute(self, sql: str, values: Any) -> int:
        with self.wrap:
            return self.cursor.execute(sql, values, prepare=self.is_direct).rowcount

    def notify(self, channel: str, payloads: Iterable[str]) -> None:
        """The statement's text is always the same: ``pg_stat_statements`` keeps each text of a NOTIFY."""
        values = [channel.encode(), json.dumps([*payloads], ensure_ascii=False).encode()]
        with self.wrap:
            self._checked(self.cursor.connection.pgconn.exec_params(NOTIFY, values))

    def insert(self, sql: str, values: Sequence[str | None]) -> int:
        """Execute an INSERT of texts, and return how many rows it made.

        If nothing else is under way, it bypasses psycopg's cursor, which takes as long as the server.
        """
        with self.wrap:
            raw, pgconn = self.cursor.connection, self.cursor.connection.pgconn
            status = pgconn.transaction_status
            # Else psycopg's cursor has to send BEGIN, or the caller has a pipeline, or reads a stream.
            is_free = status == databases.INTRANS or (status == databases.IDLE and raw.autocommit)
            if not is_free or pgconn.pipeline_status or _is_green() or not (name := self.prepared(f"AS {sql}")):
                return self.cursor.execute(sql, values, prepare=self.is_direct).rowcount
            texts: Any = [None if each is None else each.encode() for each in values]
            return int(self._checked(pgconn.exec_prepared(name.encode(), texts)).command_tuples or 0)

    def prepared(self, statement: str) -> str:
        """Prepare a statement ("AS ...") unless it is prepared already. Its name; empty: it cannot be prepared now.

        After each rollback, also to a savepoint, psycopg forgets its prepared statements, and deallocates all. So ours
        is kept in psycopg's own list; until psycopg has deallocated, nothing is prepared.
        """
        known = getattr(self.cursor.connection, "_prepared", None)
        names = getattr(known, "_names", None)
        if not self.is_direct or names is None or getattr(known, "_to_flush", True):
            return ""
        # psycopg's key: the query, and the types of its values.
        key = (statement.encode(), ())
        if (name := names.get(key)) is None:
            self._prepared += 1
            name = b"jobs_%d" % self._prepared
            places = tuple(f"${place}" for place in range(1, statement.count("%s") + 1))
            self.send(f"PREPARE {name.decode()} {statement % places}")
            names[key] = name
        return str(name.decode())

    def literal(self, text: str) -> str:
        from psycopg import pq

        return bytes(pq.Escaping(self.cursor.connection.pgconn).escape_literal(text.encode())).decode()

    def send(self, sql: str) -> str | None:
        """Execute statements without values, in one message, by libpq itself. Raises the same errors as psycopg.

        Returns:
            The first value that the last one found.
        """
        found = self._checked(self.cursor.connection.pgconn.exec_(sql.encode()))
        value = found.get_value(0, 0) if found.ntuples else None
        return None if value is None else str(value.decode())

    def _checked(self, result: Any) -> Any:
        from psycopg import errors, pq

        pgconn = self.cursor.connection.pgconn
        if result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
            if pgconn.status == pq.ConnStatus.BAD:
                raise errors.OperationalError(pgconn.get_error_message())
            raise errors.error_from_result(result)
        return result


def _is_green() -> bool:
    """Whether this process runs gevent's greenlets: a wait inside libpq would block all of them."""
    gevent = sys.modules.get("gevent.monkey")
    return gevent is not None and bool(gevent.is_module_patched("select"))


def session_of(using: str) -> Session:
    connection: Any = connections[using]
    if connection.connection is None:
        connection.ensure_connection()
    raw = connection.connection
    # The connection of another driver may take no attributes.
    kind, owner = (Session, raw) if databases.has_libpq(connection) else (extensions.instead(Session), connection)
    session: Session | None = getattr(owner, "_jobs_session", None)
    if session is None or session.raw is not raw:
        with connection.wrap_database_errors:
            session = owner._jobs_session = kind(connection)
    session.wrap = connection.wrap_database_errors
    return session


def has_begun(connection: Any) -> bool:
    """Whether the transaction has begun: the driver sends BEGIN before the first statement, and not earlier."""
    return databases.status(connection) != databases.IDLE


def literal(text: str) -> str:
    """The text as a literal of a statement whose values are passed separately."""
    text = text.replace("'", "''").replace("%", "%%")
    # With standard_conforming_strings off a backslash would escape the quote after it.
    return "E'" + text.replace("\\", "\\\\") + "'" if "\\" in text else f"'{text}'"
