"""``lock()``: one holder at a time, across processes and machines. It saves work; the database gives correctness.

Two holders may still work at the same time (Kleppmann, "How to do distributed locking"): when one is paused for longer
than the TTL, when Redis fails over, is flushed or evicts, when the store is away. So work that must not happen twice
needs a guard in the database: a row lock, a marker, a constraint, or the fencing token that the lock yields::

    with lock("import:7", ttl=30) as token:
        rows = fetch()
        Import.objects.filter(pk=7, fence__lt=token).update(rows=rows, fence=token)  # 0 rows: a later holder wrote

The database holds a job's lock exactly as long as the run lasts, and other locks for their TTL, renewed while the block
runs. The owner is the job and its lease: the next run of a job takes the lock over from the run that died, and never
the other way round. A task's own ``lock=`` is taken around its run (``doors.py``).
"""

from __future__ import annotations

import os
import random
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from django.db import Error, connections, transaction

from jobs import extensions
from jobs.conf import conf
from jobs.conf.logs import logger
from jobs.contrib.locks import store
from jobs.contrib.once.once import joined
from jobs.contrib.waking import waking
from jobs.errors import Busy
from jobs.lifecycle.run import Run, current_job, current_run
from jobs.models import Job, State
from jobs.store import databases, of
from jobs.store.databases import SideDatabase, home, side


class StoreAway(Exception):
    """A store other than the database does not answer, or its answer cannot be relied on."""


#: What a store raises when it is away.
AWAY = (StoreAway, Error, ImproperlyConfigured)

#: Seconds for which the database remembers the last fencing token of a lock that is not held.
REMEMBERED = 86400.0

#: What ``Job.waits_for`` begins with, before the key of a lock.
WAITS = "lock:"

#: The locks that the blocks around this code hold.
_around: ContextVar[tuple[str, ...]] = ContextVar("jobs.contrib.locks", default=())


def lock(*key: str | int, ttl: float = 30.0, wait: float = 0.0) -> AbstractContextManager[int]:
    """Hold the lock for a block; a context manager that yields a fencing token.

    It is released at the end of the block. In an atomic task's body that is before the commit, so the next holder does
    not see yet what this one wrote; a task's ``lock=`` is released after the commit. The token is a whole number that
    grows with every holder, also after Redis lost its data, if the clocks of Redis and of the database agree.

    Parameters:
        key: one or several parts, ``lock("import", 7)``. A task's ``lock=`` with the same text is the same lock. (In
            several parts ``:`` and ``\\`` are escaped; a single text, and a template, is taken as it is.)
        ttl: seconds for which the lock outlives a holder that died or hangs; renewed while the block runs.
        wait: seconds to wait for another holder. In a task's body leave it at 0: the job comes back by itself.

    Raises:
        jobs.Busy: another holder has it. In a task's body do not catch it: the job snoozes, and uses no attempt.
        TypeError, ValueError: a key that cannot be kept, a ``ttl`` below ``JOBS["HEARTBEAT"]``.
        RuntimeError: the block is inside another block with the same key, and would wait for itself.
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
    with closing(store_of(key, ttl, current_job())) as held:
        token = _acquire(held, wait)
        if (run := current_run()) is not None and run.task.is_async:
            # A thousand async bodies may run in this process: they must not keep a connection each.
            held.close()
        is_over = threading.Event()
        # A thread of the process that holds the lock: it need not survive a fork.
        renewal = threading.Thread(target=_renew, args=(held, is_over), name="jobs-lock", daemon=True)
        before = _around.set((*_around.get(), key))
        try:
            if held.expires:
                renewal.start()
            yield token
        finally:
            _around.reset(before)
            # A child that was forked inside the block leaves it as well, but the lock belongs to its parent.
            if os.getpid() == owner:
                is_over.set()
                if renewal.ident is not None:
                    # Race: a renewal that is under way would take the lock again.
                    renewal.join()
                try:
                    is_released = held.keep(0)
                except AWAY as exc:
                    is_released = False
                    _warn("lock_kept", held, f"could not be released; it ends by itself: {exc}")
                if is_released:
                    # Async code has no connection to use here: a waiting job then tries again after its pause.
                    with suppress(Error, SynchronousOnlyOperation):
                        _wake_later(key)


def _acquire(held: Store, wait: float) -> int:
    deadline, pause = time.monotonic() + wait, 0.05
    while True:
        try:
            return held.acquire()
        except AWAY as exc:
            _warn("lock_open", held, f"is not taken, its store is away; the work goes on without it: {exc}")
            return token_of_time()
        except Busy:
            if time.monotonic() >= deadline:
                raise
        # A random pause: with a fixed one, the same waiter might come too late again and again.
        time.sleep(min(random.uniform(0.5, 1) * pause, max(0.0, deadline - time.monotonic())))
        pause = min(1.0, pause * 2)


def _renew(held: Store, is_over: threading.Event) -> None:
    while not is_over.wait(held.ttl / 3):
        try:
            if not held.keep(held.ttl):
                _warn("lock_lost", held, "was lost: this holder was too slow, and another one has it")
                return
        except AWAY as exc:
            _warn("lock_not_renewed", held, f"could not be renewed: {exc}")


def _warn(action: str, held: Store, text: str) -> None:
    logger.warning("the lock %r %s", held.key, text, extra={"action": action})


# Where locks are kept


class Held(NamedTuple):
    """Which job has a lock (None: a block outside of jobs), and for how many seconds (None: until its run ends)."""

    job: uuid.UUID | None
    left: float | None


class Store:
    """Where one block keeps its lock: in a row that is outside of any transaction, so every process sees it at once.

    It is written over a separate connection, which is closed with the lock: one that stays open would keep test
    databases from being dropped. Every method may raise one of :data:`AWAY`.

    Parameters:
        ttl: seconds for which the lock is held; the block renews it if it ``expires``.
        job: the job that runs the block. Its next run takes the lock over.
    """

    name = "the database"

    def __init__(self, key: str, ttl: float = 0.0, job: Job | None = None) -> None:
        self.key, self.ttl, self.token = key, ttl, uuid.uuid4().hex
        self.job: uuid.UUID | None = job.pk if job else None
        self.lease = job.lease if job else 0
        self.expires = job is None
        self._side = SideDatabase()

    def acquire(self) -> int:
        """Take the lock: returns the fencing token, or raises ``Busy``."""
        held, row = self._read()
        if held is not None:
            raise self.held_by(held.job)
        fence = max(row.fence + 1, int(row.now * 1_000_000))
        until = row.now + self.ttl if self.expires else row.now
        if not store.take(self._side, self.key, row, self.job, self.lease, self.token, fence, until):
            raise self.busy(f"another holder took the lock {self.key!r} first")
        return fence

    def keep(self, seconds: float) -> bool:
        """Hold the lock for so many seconds from now on; 0 releases it. False: another holder has it."""
        return store.keep(self._side, self.key, self.token, seconds)

    def look(self) -> Held | None:
        """Who has the lock: this block, or another holder."""
        return self._read()[0]

    def close(self) -> None:
        self._side.close()

    def busy(self, text: str) -> Busy:
        exc = Busy(text)
        exc.wait = partial(_wait_for, self.key)
        return exc

    def held_by(self, job: object) -> Busy:
        return self.busy(f"the lock {self.key!r} is held by {f'the job {job}' if job else 'code that is no job'}")

    def _read(self) -> tuple[Held | None, store.Row]:
        row = store.read(self._side, self.key)
        if row.job is None:
            return (Held(None, row.expires_at - row.now) if row.expires_at > row.now else None), row
        # The next run of a job takes over from the run that died, and never the other way round.
        is_earlier = row.job == self.job and (row.lease or 0) < self.lease
        is_free = is_earlier or not is_running(self._side, row.job, row.lease or 0)
        return (None if is_free else Held(row.job, None)), row


def store_of(key: str, ttl: float = 0.0, job: Job | None = None) -> Store:
    return extensions.instead(Store)(key, ttl, job)


def is_running(database: SideDatabase, job: uuid.UUID, lease: int) -> bool:
    """Whether the run that took a lock still lasts.

    If possible, do not ask over a body's connection: its snapshot may be older than that run.
    """
    others = list(conf().DATABASES)
    if not of(home()).has_one_writer:
        others.remove(home())
        if store.is_running(database, job, lease):
            return True
    return any(Job.objects.using(alias).filter(pk=job, state=State.RUNNING, lease=lease).exists() for alias in others)


def token_of_time() -> int:
    """The token if the store is away: the database's time. A fast clock of this machine would fence later holders."""
    try:
        with side() as database:
            return int(database.seconds() * 1_000_000)
    except AWAY:
        return time.time_ns() // 1000


def look(key: str) -> Held | None:
    """Who has the lock; None: it is free. Raises one of :data:`AWAY` if the store does not answer."""
    with closing(store_of(key)) as held:
        return held.look()


def _wake_later(key: str) -> None:
    """Wake a job after the releaser's commit: inside a body's transaction, no worker would see the woken job yet."""
    run = current_run()
    using = run.using if run is not None else home()
    if run is not None:
        # If its transaction rolls back, the transaction that writes the run's end wakes it (``Run.end``).
        run.afterwards[key] = partial(wake, key)
    # With autocommit off Django does not tell us of the commit.
    if connections[using].in_atomic_block or connections[using].get_autocommit():
        transaction.on_commit(partial(wake, key, run), using=using, robust=True)


def wake(key: str, run: Run | None = None) -> None:
    """Let the first job that waits for the lock try again. Never raises: a missed job tries again after its pause."""
    if run is not None:
        run.afterwards.pop(key, None)
    for alias in conf().DATABASES:
        try:
            with of(alias).write_mutex():
                if waking.wake(WAITS + key, alias):
                    return
        except Error:
            logger.debug("no job was woken for the lock %r", key, exc_info=True, extra={"action": "lock_not_told"})
            if not connections[alias].in_atomic_block:
                databases.drop(alias)


def _wait_for(key: str, job: Job, seconds: float, error: dict[str, Any]) -> bool:
    """See ``Busy.wait``."""
    if done := waking.wait_for(job, WAITS + key, seconds, error):
        # Race: the holder released it, and looked for waiting jobs, before that.
        with suppress(*AWAY):
            if look(key) is None:
                wake(key)
    return done


def prune(database: SideDatabase, budget: float) -> None:
    """Forget locks that were not held for :data:`REMEMBERED` seconds, batch by batch; stop after ``budget`` seconds."""
    deadline, behind, size = time.monotonic() + budget, -1.0, conf().BATCH
    while rows := store.read_old(database, REMEMBERED, behind, size):
        jobs = {job for _, job, *_ in rows if job is not None}
        running: set[tuple[Any, int]] = set()
        for held in databases.each(Job.objects.filter(pk__in=jobs, state=State.RUNNING)):
            running.update(held.values_list("pk", "lease"))
        # A run that lasts for a day keeps its lock.
        keys = [key for key, job, lease, _ in rows if job is None or (job, lease) not in running]
        if keys:
            store.delete_old(database, REMEMBERED, keys)
        else:
            # Of kept locks that expired at the same moment, some may be skipped this time.
            behind = rows[-1][3]
        if len(rows) < size or time.monotonic() > deadline:
            return
