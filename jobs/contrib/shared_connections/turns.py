"""Connections that the threads of a supervisor share: a thread has them for one step, as if they were its own.

The threads make few queries, and each would keep a connection for them. SQLite's connections are not shared.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import Error, connections

from jobs import store
from jobs.conf import conf
from jobs.store import databases

#: Seconds that a thread's step may take. After that (it may hang) other threads open a connection for each step.
PATIENCE = 1.0


class Turns:
    """The thread that has waited longest is the next."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._is_taken, self._since = False, 0.0
        self._waiting: deque[threading.Event] = deque()
        self._connections: list[Any] = []
        #: Of this thread: whether it has a turn, and whether with the shared connections.
        self._own = threading.local()

    @property
    def is_own(self) -> bool:
        return hasattr(self._own, "is_shared")

    @property
    def is_wanted(self) -> bool:
        return bool(self._waiting)

    def begin(self) -> None:
        self._own.is_shared = self._acquire()
        if self._own.is_shared:
            for connection in self._connections:
                connections[connection.alias] = connection

    def end(self) -> None:
        mine = [each for each in connections.all(initialized_only=True) if not store.of(each.alias).has_one_writer]
        for connection in mine:
            if connection.in_atomic_block or not self._own.is_shared:
                databases.drop(connection.alias)
            if not connection.allow_thread_sharing:
                connection.inc_thread_sharing()
            del connections[connection.alias]
        is_shared = self._own.is_shared
        del self._own.is_shared
        if is_shared:
            self._connections = mine
            self._release()

    def _acquire(self) -> bool:
        """Wait for the turn; False: another thread's step takes too long."""
        mine = threading.Event()
        with self._guard:
            if not self._is_taken:
                self._is_taken, self._since = True, time.monotonic()
                return True
            self._waiting.append(mine)
        while not mine.wait(max(0.0, self._since + PATIENCE - time.monotonic())):
            with self._guard:
                # Race: the turn was handed to this thread meanwhile, or another thread's step began.
                if not mine.is_set() and time.monotonic() >= self._since + PATIENCE:
                    self._waiting.remove(mine)
                    return False
        return True

    def _release(self) -> None:
        with self._guard:
            self._since = time.monotonic()
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._is_taken = False


#: Of this process; None: each thread has its own connections, as Django makes them.
_turns: Turns | None = None


def share() -> None:
    """From now on the threads of this process share connections, in blocks of :func:`turn`."""
    global _turns
    is_shared = not all(store.of(alias).has_one_writer for alias in conf().DATABASES)
    _turns = Turns() if is_shared else None


@contextmanager
def turn() -> Iterator[None]:
    """A step that uses databases. After it this thread has no connection, and no transaction is open."""
    if _turns is None or _turns.is_own:
        yield
        return
    _turns.begin()
    try:
        yield
    except Error:
        for connection in connections.all(initialized_only=True):
            databases.drop(connection.alias)
        raise
    finally:
        _turns.end()


def give_way() -> None:
    """Call between two parts of a long step: threads that wait get their turn. Not inside a transaction."""
    if _turns is not None and _turns.is_own and _turns.is_wanted:
        _turns.end()
        _turns.begin()
