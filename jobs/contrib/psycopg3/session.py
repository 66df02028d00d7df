"""Connections of psycopg 3: its own cursor prepares statements, and libpq sends several in one message."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from jobs.store import databases
from jobs.store.sessions import NOTIFICATION, Session, has_begun

_NOTIFY = NOTIFICATION.format("$1", "$2").encode()

#: Seconds for which the server keeps its plans: a plan made for an empty table would read all of a full one.
PLANNED = 1.0


def opened(connection: Any) -> Session:
    """The session of a connection; psycopg2 gives no access to its libpq."""
    raw = connection.connection
    if not databases.has_libpq(connection):
        return Session(connection)
    # A pool hands the driver's connection from one of Django's to another one.
    session: Preparing = getattr(raw, "_jobs_session", None) or Preparing(connection)
    session.connection, raw._jobs_session = connection, session
    return session


@cache
def _typed(types: str, template: str) -> str:
    """The statement as it is prepared."""
    return f"({types}) AS {template.format(*(f'${place}' for place in range(1, types.count(',') + 2)))}"


class Preparing(Session):
    """It has statements prepared, and sends several in one message. It raises Django's exceptions."""

    def __init__(self, connection: Any) -> None:
        import psycopg

        self.cursor = psycopg.Cursor(connection.connection)
        self.is_direct = self._is_busy = False
        super().__init__(connection)
        if self.is_direct and self.raw.prepare_threshold is None:
            # Django makes psycopg prepare nothing at all; now it prepares where ``prepare=`` asks for it.
            self.raw.prepare_threshold = sys.maxsize
        self._plan_at = time.monotonic() + PLANNED
        self._prepared = 0

    def fetch(self, sql: str, values: Any = None) -> list[Any]:
        with self.connection.wrap_database_errors:
            # Not if the last look found nothing: a worker that waits costs as little as it can.
            if self.is_direct and self._is_busy and time.monotonic() > self._plan_at:
                self._send("DISCARD PLANS")
                self._plan_at = time.monotonic() + PLANNED
            rows = self.cursor.execute(sql, values, prepare=self.is_direct).fetchall()
            self._is_busy = bool(rows)
            return rows

    def execute(self, sql: str, values: Any) -> int:
        with self.connection.wrap_database_errors:
            return self.cursor.execute(sql, values, prepare=self.is_direct).rowcount

    def notify(self, channel: str, payloads: Iterable[str]) -> None:
        values = [channel.encode(), json.dumps([*payloads], ensure_ascii=False).encode()]
        with self.connection.wrap_database_errors:
            self._checked(self.raw.pgconn.exec_params(_NOTIFY, values))

    def insert(self, sql: str, values: Sequence[str | None]) -> int:
        """Execute an INSERT of texts, and return how many rows it made.

        If nothing else is under way, it bypasses psycopg's cursor, which takes as long as the server.
        """
        with self.connection.wrap_database_errors:
            raw, pgconn = self.raw, self.raw.pgconn
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
        known = getattr(self.raw, "_prepared", None)
        names = getattr(known, "_names", None)
        if not self.is_direct or names is None or getattr(known, "_to_flush", True):
            return ""
        # psycopg's key: the query, and the types of its values.
        key = (statement.encode(), ())
        if (name := names.get(key)) is None:
            self._prepared += 1
            name = b"jobs_%d" % self._prepared
            places = tuple(f"${place}" for place in range(1, statement.count("%s") + 1))
            self._send(f"PREPARE {name.decode()} {statement % places}")
            names[key] = name
        return str(name.decode())

    def send(self, sql: str) -> str | None:
        """By libpq itself: psycopg's cursor takes five times as long. But only that begins an announced transaction."""
        if not self.raw.autocommit and not has_begun(self.connection):
            return super().send(sql)
        with self.connection.wrap_database_errors:
            return self._send(sql)

    def send_last(self, types: str, template: str, values: Sequence[str], commits: bool, is_held: bool) -> str | None:
        """If the transaction is the body's own, the COMMIT is in the same message."""
        connection, begun = self.connection, has_begun(self.connection)
        # Inside a savepoint the transaction is not the body's own.
        is_own = connection.in_atomic_block and not connection.savepoint_ids and not is_held
        if not begun and not is_own and not self.raw.autocommit:
            # In a savepoint that is the first of its transaction.
            return super().send(template.format(*values))
        with connection.wrap_database_errors:
            name = self.prepared(_typed(types, template))
            sql = f"EXECUTE {name}({', '.join(values)})" if name else template.format(*values)
            # After a body that executed nothing the statement commits by itself. The server would warn of a COMMIT.
            return self._send(sql + ("; COMMIT" if begun and is_own and commits else ""))

    def _send(self, sql: str) -> str | None:
        """By libpq itself. Raises the same errors as psycopg."""
        found = self._checked(self.raw.pgconn.exec_(sql.encode()))
        value = found.get_value(0, 0) if found.ntuples else None
        return None if value is None else str(value.decode())

    def _checked(self, result: Any) -> Any:
        from psycopg import errors, pq

        pgconn = self.raw.pgconn
        if result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
            if pgconn.status == pq.ConnStatus.BAD:
                raise errors.OperationalError(pgconn.get_error_message())
            raise errors.error_from_result(result)
        return result


def _is_green() -> bool:
    """Whether this process runs gevent's greenlets: a wait inside libpq would block all of them."""
    gevent = sys.modules.get("gevent.monkey")
    return gevent is not None and bool(gevent.is_module_patched("select"))
