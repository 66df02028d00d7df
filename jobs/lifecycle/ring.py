"""A ring tells listening workers that a queue has work. It may be lost: then a poll finds the job.

On PostgreSQL a ring is a NOTIFY after the caller's commit, in a statement of its own. Inside the caller's transaction
it would take a lock that lets such transactions commit one after the other only. Elsewhere nobody rings, and workers
look for changes themselves.
"""

import os
import select
import time
from collections.abc import Iterable
from contextlib import suppress

from django.db import Error, connections

from jobs.conf.logs import logger
from jobs.database import databases
from jobs.lifecycle import claims

#: PostgreSQL's channel; the payload is the queue's name.
CHANNEL = "jobs_ring"

#: Seconds in which a process rings once for a queue. What it enqueues meanwhile the listener finds when it looks again.
PAUSE = 0.02

_rung: dict[tuple[str, str], float] = {}


def ring(using: str, queues: Iterable[str]) -> None:
    """Tell the workers. Call it after the commit; it never raises, and costs nothing where nobody listens."""
    connection = connections[using]
    if connection.vendor != "postgresql":
        return
    now = time.monotonic()
    due = [queue for queue in queues if now - _rung.get((using, queue), -PAUSE) >= PAUSE]
    if not due:
        return
    if len(_rung) > 1000:
        _rung.clear()
    _rung.update(((using, queue), now) for queue in due)
    try:
        claims.session_of(using).notify(CHANNEL, due)
    except Error:
        logger.debug("a ring was lost", exc_info=True, extra={"action": "ring_lost"})
        if not connection.in_atomic_block:
            databases.drop(using)


class Bell:
    """Wakes the processes of this worker that wait for jobs: a pipe that all inherit, with a byte for each to wake."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)

    def fileno(self) -> int:
        """To wait for, by ``select`` or ``poll``."""
        return self._reader

    def ring(self) -> None:
        # So many bytes that nobody has read wake everybody anyway.
        with suppress(BlockingIOError):
            os.write(self._writer, b".")

    def hear(self) -> None:
        """Take one ring, if nobody was faster."""
        with suppress(BlockingIOError):
            os.read(self._reader, 1)

    def wait(self, timeout: float) -> bool:
        """Wait for a ring and take it; False: none came within ``timeout`` seconds."""
        if is_rung := bool(select.select([self._reader], [], [], timeout)[0]):
            self.hear()
        return is_rung


#: Made before the worker forks, like the board.
bell = Bell()
