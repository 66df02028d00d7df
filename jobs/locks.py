"""``lock()``: one at a time, across processes and machines. It saves work; the database gives correctness.

What no lock of this kind does (Kleppmann, "How to do distributed locking"): a holder that is paused for longer than the
TTL, and a Redis that fails over, is flushed or evicts, let two work at the same time, and neither notices in time.
Without its store everybody works at once. So what must not happen twice needs a guard of its own in the database: a row
lock, a marker, a constraint, or the fencing token that the lock yields::

    with lock("import:7", ttl=30) as token:
        rows = fetch()
        Import.objects.filter(pk=7, fence__lt=token).update(rows=rows, fence=token)  # 0 rows: a later holder wrote

Redis (django-redis, ``JOBS["LOCK_CACHE"]``) holds a lock for its TTL, renewed as long as the block runs. The database,
where there is no Redis, holds a job's lock exactly as long as that run lasts, and others' for their TTL. In both the
owner is the job and its lease: the next run of a job takes the lock over from the one that died, and never the other
way round.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from contextvars import ContextVar
from typing import Any

from jobs.conf import conf
from jobs.errors import Busy
from jobs.keys import joined
from jobs.lockstores import Away, Store, store_of, token_of_time
from jobs.run import current_job

logger = logging.getLogger("jobs")


#: The locks of the blocks around this one.
_around: ContextVar[tuple[str, ...]] = ContextVar("jobs.locks", default=())


def lock(*key: str | int, ttl: float = 30.0, wait: float = 0.0) -> AbstractContextManager[int]:
    """Hold the lock for a block; a context manager that yields a fencing token.

    It is released at the end of the block. In an atomic task's body that is before the commit, and the next holder does
    not see yet what this one wrote; ``lock=`` of the task is released after it.

    Parameters:
        key: one or several parts, ``lock("import", 7)``. A task's ``lock=`` of the same text is the same lock.
        ttl: seconds for which the lock outlives a holder that died or hangs; renewed while the block runs.
        wait: seconds to wait for another holder. In a task's body leave it at 0: the job comes back by itself.

    Returns:
        The token: a whole number (microseconds) that is larger with every holder, also after Redis lost its data, or
        went away. For that the clocks of Redis and of the database have to agree.

    Raises:
        jobs.Busy: somebody else has it. In a task's body let it pass: the job snoozes, and uses no attempt.
        TypeError, ValueError: a key that cannot be kept, a ``ttl`` below ``JOBS["HEARTBEAT"]``.
        RuntimeError: the block is inside another one of the same key, and would wait for itself.
    """
    name = joined(key, "lock()")
    check_ttl(ttl, "lock(): ttl")
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait < float("inf"):
        raise ValueError(f"lock(): wait={wait!r} must be seconds, 0 or more")
    return _hold(name, float(ttl), float(wait))


def check_ttl(ttl: Any, what: str) -> None:
    """Refuse a lock that a live holder could not renew in time: ``TypeError`` or ``ValueError``, with the cure."""
    if isinstance(ttl, bool) or not isinstance(ttl, int | float):
        raise TypeError(f"{what}={ttl!r} must be a number of seconds")
    if not conf().HEARTBEAT <= ttl < float("inf"):
        raise ValueError(
            f"{what}={ttl!r} must be at least JOBS['HEARTBEAT'] ({conf().HEARTBEAT:g} s): a holder that is slow for a "
            "moment would lose it. Use 30; a job that died takes its own lock back at once, whatever its ttl"
        )


@contextmanager
def _hold(key: str, ttl: float, wait: float) -> Iterator[int]:
    if key in _around.get():
        raise RuntimeError(f"the lock {key!r} is held by a block around this one, which would wait for itself")
    owner = os.getpid()
    with closing(store_of(key, ttl, current_job())) as store:
        token = _acquire(store, wait)
        is_over = threading.Event()
        # A thread of the process that holds the lock: nothing of it has to survive a fork.
        renewal = threading.Thread(target=_renew, args=(store, is_over), name="jobs-lock", daemon=True)
        before = _around.set((*_around.get(), key))
        try:
            if store.expires:
                renewal.start()
            yield token
        finally:
            _around.reset(before)
            # A child that was forked inside the block leaves it as well, and the lock is its parent's.
            if os.getpid() == owner:
                is_over.set()
                if renewal.ident is not None:
                    # Race: a renewal on its way would take the lock again.
                    renewal.join()
                try:
                    store.keep(0)
                except Away as exc:
                    _warn("lock_kept", store, f"could not be released; it ends by itself: {exc}")


def _acquire(store: Store, wait: float) -> int:
    deadline = time.monotonic() + wait
    pause = 0.05
    while True:
        try:
            return store.acquire()
        except Away as exc:
            _warn("lock_open", store, f"is not taken, its store is away; the work goes on without it: {exc}")
            return token_of_time()
        except Busy:
            if time.monotonic() >= deadline:
                raise
        # At no fixed time, or the same one might come too late again and again.
        time.sleep(min(random.uniform(0.5, 1) * pause, max(0.0, deadline - time.monotonic())))
        pause = min(1.0, pause * 2)


def _renew(store: Store, is_over: threading.Event) -> None:
    while not is_over.wait(store.ttl / 3):
        try:
            if not store.keep(store.ttl):
                _warn("lock_lost", store, "was lost: this holder was too slow, and another one has it")
                return
        except Away as exc:
            _warn("lock_not_renewed", store, f"could not be renewed: {exc}")


def _warn(action: str, store: Store, text: str) -> None:
    logger.warning("the lock %r %s", store.key, text, extra={"action": action})
