"""What Celery's prefork pool forgets while a process has it in hand.

When its consumer stops, or loses its broker, the pool drops every task that no process has accepted yet: the broker
delivers such a message again. But a process may have read it a moment ago. If the pool then knows of no other task, it
reads no more results, and the process waits for 30 seconds for its own to be read: so long takes the stop.
"""

from __future__ import annotations

from typing import Any

from celery.concurrency.asynpool import AsynPool
from celery.concurrency.prefork import TaskPool


def remember_written(pool: Any) -> None:
    """Let the pool keep the tasks that it has written to a process."""
    if not (isinstance(pool, TaskPool) and isinstance(pool._pool, AsynPool)) or hasattr(pool.flush, "remembers"):
        return
    inner, flush = pool._pool, pool.flush

    def flush_others() -> None:
        # Half a message does not count: the pool drops its rest.
        halves = {id(writer) for writer in inner._active_writers}
        known = {number: job for number, job in inner._cache.items() if job._write_to is not None}
        written = {number: job for number, job in known.items() if id(job._writer()) not in halves}
        flush()
        inner._cache.update((number, job) for number, job in written.items() if not job.ready())

    flush_others.remembers = True  # type: ignore[attr-defined]
    pool.flush = flush_others
