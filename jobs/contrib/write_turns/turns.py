"""On SQLite the bodies of a worker take turns, and leave a gap for callers.

SQLite has one writer. A process that finds the database locked retries after longer and longer pauses: several busy
processes would sleep most of the time, and a caller would find no gap. So the worker's processes queue up at a lock
that wakes them at once, and a process that had its turn waits a moment before it passes the lock on.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

#: Seconds between two turns, in which a caller may write.
GAP = 0.0007


_processes: AbstractContextManager[Any] | None = None
_threads = threading.Lock()
#: Whether this thread has its turn already: a hook after a commit may write as well.
_own = threading.local()


def install() -> None:
    """Called in a worker that has such a database, before it forks."""
    # Only workers have pools.
    from jobs.worker.pool import Lock

    global _processes
    _processes = Lock()


def held() -> AbstractContextManager[None]:
    """A block in which this process may write. Outside of workers it always may."""
    return _ALWAYS if _processes is None else _held(_processes)


_ALWAYS = nullcontext()


@contextmanager
def _held(processes: AbstractContextManager[Any]) -> Iterator[None]:
    if getattr(_own, "has_it", False):
        yield
        return
    with _threads, processes:
        _own.has_it = True
        try:
            yield
        finally:
            _own.has_it = False
            time.sleep(GAP)
