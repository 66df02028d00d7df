"""After a commit, listening workers are told that a queue has work.

On PostgreSQL it is a NOTIFY after the caller's commit, in a statement of its own. Inside the caller's transaction it
would take a lock that lets such transactions commit one after the other only. Elsewhere workers look for changes
themselves.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from django.db import Error, connections

from jobs import store
from jobs.conf.logs import logger
from jobs.store import databases

#: PostgreSQL's channel; the payload is a :class:`News`.
CHANNEL = "jobs_wakeup"

#: How often a process notifies of a queue: so many times at once, and once in so many seconds over time. The listener
#: finds what it enqueues meanwhile when it looks again, some 10 ms later. (If only one were sent at once, that would be
#: one job in six at 33 jobs a second.)
BURST, PAUSE = 5, 0.02

#: When each queue may be notified of at the full rate again: the generic cell rate algorithm (GCRA).
_notified: dict[tuple[str, str], float] = {}


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
    """Tell the workers of the queue of each new job; nothing on a database without NOTIFY. It never raises."""
    if not store.of(using).has_notify:
        return
    counts = Counter(queues)
    if due := [queue for queue in counts if is_due(using, queue)]:
        send(using, CHANNEL, [str(News(queue, counts[queue], random.getrandbits(63))) for queue in due])


def is_due(using: str, queue: str) -> bool:
    """Whether to notify of this queue now, and not rest after so many notifications; it counts as one."""
    now = time.monotonic()
    if (at := max(now, _notified.get((using, queue), now))) - now > (BURST - 1) * PAUSE:
        return False
    if len(_notified) > 1000:
        _notified.clear()
    _notified[using, queue] = at + PAUSE
    return True


def send(using: str, channel: str, payloads: list[str]) -> None:
    """Notify all sessions that listen to the channel, after a commit. It never raises."""
    try:
        store.of(using).notify(channel, payloads)
    except Error:
        logger.debug("a notification was lost", exc_info=True, extra={"action": "notify_lost"})
        if not connections[using].in_atomic_block:
            databases.drop(using)
