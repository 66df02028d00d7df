"""After a commit it is told that queues have work. That may be lost: then a poll finds the jobs.

In a worker a pipe wakes the processes that wait for jobs.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterable
from contextlib import suppress

from jobs import extensions

#: The kinds of a wake-up: one job came; several came, and a process that finds one wakes the next process.
ONE, SOME = b"1", b"+"


def notify(using: str, queues: Iterable[str]) -> None:
    """Tell of the queue of each new job. Call it after the commit; it never raises."""
    for came in extensions.through("came"):
        came(using, queues)


class Wakeup:
    """Wakes the processes of this worker that wait for jobs: a pipe that all inherit, with a byte for each to wake."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        #: The wake-ups of executors, which :meth:`send` wakes, too.
        self.others: list[Wakeup] = []

    def fileno(self) -> int:
        """To wait for, by ``select`` or ``poll``."""
        return self._reader

    def send(self, kind: bytes = SOME) -> None:
        """There is news: wake one process, and one executor of each kind."""
        for each in (self, *self.others):
            each.pass_on(kind)

    def pass_on(self, kind: bytes = SOME) -> None:
        """There is more than the caller took: wake another one of its kind."""
        # The pipe is full: enough unread bytes to wake every process.
        with suppress(BlockingIOError):
            os.write(self._writer, kind)

    def take(self, most: int = 1) -> bytes:
        """Take so many wake-ups, if there are as many; empty: there are none, or another process was faster."""
        with suppress(BlockingIOError):
            return os.read(self._reader, most)
        return b""

    def take_all(self) -> bytes:
        """Take all there are, before a look that answers them."""
        return self.take(1 << 16)

    def wait(self, timeout: float) -> bytes:
        """Wait for a wake-up and take it; empty: none came in ``timeout`` seconds, or another process was faster."""
        return self.take() if select.select([self._reader], [], [], timeout)[0] else b""


#: Made before the worker forks, like the worker state.
wakeup = Wakeup()
