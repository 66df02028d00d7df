"""Two connections at once, in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from django.db import connection, transaction

from jobs.store import databases
from tests.helpers.servers import wait_for


class Elsewhere:
    """An action on another connection, in a thread; ``result()`` waits for what it returned or raised."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self.outcome: list[Any] = []
        self._action = action
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.outcome.append(self._action())
        except Exception as exc:
            self.outcome.append(exc)
        finally:
            connection.close()

    def result(self, timeout: float = 30) -> Any:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "it still waits"
        return self.outcome[0]


@contextmanager
def open_transaction(action: Callable[[], Any], commits: bool = True) -> Iterator[None]:
    """A transaction on another connection, in which ``action`` was done, and which ends after the block."""
    done, go = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            action()
            done.set()
            assert go.wait(30)
            transaction.set_rollback(not commits)

    holder = Elsewhere(hold)
    wait_for(lambda: done.is_set() or holder.outcome, 10, "the other transaction is open")
    assert done.is_set(), holder.outcome
    try:
        yield
    finally:
        go.set()
        assert holder.result() is None


def somebody_waits(seconds: float = 0.0) -> bool:
    """Whether a transaction has waited so long for another one; SQLite does not say."""
    if connection.vendor != "postgresql":
        return True
    with connection.cursor() as cursor:
        # In a transaction the first look would be repeated.
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
            "AND clock_timestamp() - query_start >= make_interval(secs => %s)",
            [seconds],
        )
        return bool(cursor.fetchone()[0])


@contextmanager
def by_default(isolation: str) -> Iterator[None]:
    """Connections that are opened from now on have this isolation level (PostgreSQL)."""
    database = f"ALTER DATABASE {connection.ops.quote_name(connection.settings_dict['NAME'])}"
    with connection.cursor() as cursor:
        cursor.execute(f"{database} SET default_transaction_isolation = '{isolation}'")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"{database} RESET default_transaction_isolation")


@contextmanager
def autocommit_off() -> Iterator[None]:
    """Who does that ends the transaction in the block."""
    connection.set_autocommit(False)
    try:
        yield
    finally:
        connection.set_autocommit(True)


def cut() -> None:
    """The server ends this process's connection."""
    with databases.apart("default") as other, other.cursor() as cursor:
        pid = connection.connection.info.backend_pid
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])


def end_session() -> None:
    """The server, or a pooler, ends this thread's session while nothing uses it."""
    connection.ensure_connection()
    if connection.vendor == "postgresql":
        cut()
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT CONNECTION_ID()")
        session = cursor.fetchone()
    with closing(connection.copy()) as other, other.cursor() as cursor:
        cursor.execute("KILL %s", session)
        while cursor.execute("SELECT 1 FROM information_schema.processlist WHERE id = %s", session):
            time.sleep(0.01)
