"""What Celery's prefork pools lose together with a process, or forget while a process has it in hand."""

from __future__ import annotations

import fcntl
import tempfile
from typing import Any

import billiard.pool
from celery.concurrency.asynpool import AsynPool
from celery.concurrency.prefork import TaskPool


class BlockingPool(billiard.pool.Pool):
    """The pool of a transport without an event loop, as ``jobs://``. Its processes share two pipes, with a lock each.

    One process waits for the next task with the lock in hand. In billiard that is a semaphore: if this process is
    killed, nobody reads a task any more, and the worker stands still for good.
    """

    def _setup_queues(self) -> None:
        super()._setup_queues()
        self._inqueue._rlock = Lock()
        self._outqueue._wlock = Lock()


class Lock:
    """A lock between processes (not threads) that is free again when its holder dies: the kernel sees to that."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="jobs-")  # noqa: SIM115  (it lives as long as the pool)

    def acquire(self) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_EX)

    def release(self) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()


def install() -> None:
    """For the pool that this process is going to start."""
    TaskPool.BlockingPool = BlockingPool


def remember_written(pool: Any) -> None:
    """Let the pool keep the tasks that it has written to a process.

    When its consumer stops, or loses its broker, the pool drops every task that no process has accepted yet: the broker
    delivers such a message again. But a process may have read it a moment ago. If the pool then knows of no other task,
    it reads no more results, and the process waits for 30 seconds for its own to be read: so long takes the stop.
    """
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
