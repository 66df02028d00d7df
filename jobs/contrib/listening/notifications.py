"""What a session of PostgreSQL receives by LISTEN, with either driver."""

from __future__ import annotations

import select
import time
from collections.abc import Container
from typing import Any

from jobs.store import databases


class Notifications:
    """Parameters:
    connection: in autocommit mode, and used by no other code; it may execute other statements meanwhile.
    """

    def __init__(self, connection: Any, channel: str) -> None:
        connection.ensure_connection()
        self._connection, self._raw = connection, connection.connection
        self._kept: list[str] = []
        self._has_libpq = databases.has_libpq(connection)
        if self._has_libpq:
            # For notifications that come with an answer. psycopg2 keeps those itself.
            self._raw.add_notify_handler(lambda note: self._kept.append(note.payload))
        self.execute(f"LISTEN {channel}")

    def execute(self, sql: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)

    def fileno(self) -> int:
        """For ``select`` or ``poll``."""
        return int(self._raw.fileno())

    def heard(self) -> list[str]:
        """The payloads that have come, without waiting; psycopg's own ``notifies()`` takes a hundred times as long."""
        heard, self._kept = self._kept, []
        with self._connection.wrap_database_errors:
            if self._has_libpq:
                self._raw.pgconn.consume_input()
                while (note := self._raw.pgconn.notifies()) is not None:
                    heard.append(note.extra.decode())
            else:
                self._raw.poll()
                heard += [note.payload for note in self._raw.notifies]
                self._raw.notifies.clear()
        return heard

    def hears(self, seconds: float, wanted: Container[str]) -> bool:
        """Whether one of these payloads comes within so many seconds."""
        deadline = time.monotonic() + seconds
        while not any(payload in wanted for payload in self.heard()):
            poll = select.poll()
            poll.register(self, select.POLLIN)
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return False
        return True
