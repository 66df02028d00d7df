"""After a commit, listening workers are told that a queue has work. That may be lost: then a poll finds the job.

On PostgreSQL it is a NOTIFY after the caller's commit, in a statement of its own. Inside the caller's transaction it
would take a lock that lets such transactions commit one after the other only. Elsewhere workers look for changes
themselves.
"""

from __future__ import annotations

import os
import random
import select
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from django.db import Error, connections

from jobs import store
from jobs.conf.logs import logger
from jobs.lifecycle.worker_state import worker_state
from jobs.models import Job
from jobs.store import databases

#: PostgreSQL's channel; the payload is a :class:`News`.
CHANNEL = "jobs_wakeup"

#: The channel for callers that wait for results; the payload is the job's id in Celery.
ENDED = "jobs_ended"
#: The payload that says: this caller waits for a result. Workers announce each end for so many seconds after it, and
#: at no other time.
WAITS, ANSWERS = "?", 3.0

#: How often a process notifies of a queue: so many times at once, and once in so many seconds over time. The listener
#: finds what it enqueues meanwhile when it looks again, some 10 ms later. (If only one were sent at once, that would be
#: one job in six at 33 jobs a second.)
BURST, PAUSE = 5, 0.02

#: When each queue may be notified of at the full rate again: the generic cell rate algorithm (GCRA).
_notified: dict[tuple[str, str], float] = {}


#: The kinds of a wake-up: one job came; several came, and a process that finds one wakes the next process.
ONE, SOME = b"1", b"+"


class News(NamedTuple):
    """So many jobs have come into a queue."""

    queue: str
    jobs: int = 1
    #: A random number, the same for all nodes that hear it: it decides whose turn it is.
    number: int = 0

    @classmethod
    def read(cls, text: str) -> News:
        queue, is_news, numbers = text.rpartition("\n")
        return cls(queue, *map(int, numbers.split())) if is_news else cls(text)

    def __str__(self) -> str:
        return f"{self.queue}\n{self.jobs} {self.number}"


def notify(using: str, queues: Iterable[str]) -> None:
    """Tell the workers of the queue of each new job.

    Call it after the commit; it never raises, and does nothing on a database without NOTIFY.
    """
    if not store.of(using).has_notify:
        return
    counts = Counter(queues)
    if due := [queue for queue in counts if is_due(using, queue)]:
        _send(using, CHANNEL, [str(News(queue, counts[queue], random.getrandbits(63))) for queue in due])


def is_due(using: str, queue: str) -> bool:
    """Whether to notify of this queue now, and not rest after so many notifications; it counts as one."""
    now = time.monotonic()
    if (at := max(now, _notified.get((using, queue), now))) - now > (BURST - 1) * PAUSE:
        return False
    if len(_notified) > 1000:
        _notified.clear()
    _notified[using, queue] = at + PAUSE
    return True


def answer(job: Job, using: str) -> None:
    """Tell callers that wait for results that a job has ended. Call it after the commit; it never raises."""
    if worker_state.answers_until > time.monotonic() and store.of(using).has_notify:
        _send(using, ENDED, [job.task_id])


def _send(using: str, channel: str, payloads: list[str]) -> None:
    try:
        store.of(using).notify(channel, payloads)
    except Error:
        logger.debug("a notification was lost", exc_info=True, extra={"action": "notify_lost"})
        if not connections[using].in_atomic_block:
            databases.drop(using)


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
