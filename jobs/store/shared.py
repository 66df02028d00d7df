"""Connections that the threads of a supervisor share: each has them for a step, as if they were its own.

Many threads ask little, and each would keep a connection for that. SQLite's are files, and are not shared.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import Error, connections

from jobs.conf import conf
from jobs.store import databases

#: Seconds that somebody's step may take. Then the others open connections of their own, for a step each: it may hang.
PATIENCE = 1.0


class Turns:
    """Who waits longest is the next."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._is_taken, self._since = False, 0.0
        self._waiting: deque[threading.Event] = deque()
        self._connections: list[Any] = []
        #: Whether this thread has a turn, and whether with the connections that are shared.
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
        mine = [each for each in connections.all(initialized_only=True) if each.vendor != "sqlite"]
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
        """Wait for the turn; False: somebody's step takes too long."""
        mine = threading.Event()
        with self._guard:
            if not self._is_taken:
                self._is_taken, self._since = True, time.monotonic()
                return True
            self._waiting.append(mine)
        while not mine.wait(max(0.0, self._since + PATIENCE - time.monotonic())):
            with self._guard:
                # Race: it was handed over since, or somebody else's step began.
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
    """From now on the threads of this process share connections, as far as they take turns."""
    global _turns
    is_shared = any(connections[alias].vendor != "sqlite" for alias in conf().DATABASES)
    _turns = Turns() if is_shared else None


@contextmanager
def turn() -> Iterator[None]:
    """A step with databases, after which this thread has no connection. No transaction outlives it."""
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
    """Between two parts of a step that takes long: whoever waits comes first. Not inside a transaction."""
    if _turns is not None and _turns.is_own and _turns.is_wanted:
        _turns.end()
        _turns.begin()
