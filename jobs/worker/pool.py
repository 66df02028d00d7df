"""Celery's own pool processes claim jobs: between two stock tasks each waits for its pipe *or* for a wake-up.

A job is no task of the pool, so jobs do not need the broker or the worker's event loop. What is private to Celery and
billiard here is listed, and every worker checks that it still exists.
"""

import fcntl
import select
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import billiard.pool
from billiard.pool import EX_FAILURE, EX_OK
from celery.concurrency import asynpool, prefork

from jobs import extensions
from jobs.lifecycle.wakeups import Wakeup, wakeup
from jobs.lifecycle.worker_state import IDLE, worker_state
from jobs.worker import executors
from jobs.worker.runner import Runner

#: Milliseconds that a process waits for a stock task after it has offered to run one.
OFFER = 50

#: By this a process offers to run a stock task: it wakes the event loop of the main process.
offers = Wakeup()

#: Its thread makes processes, and lasts as long as the main process.
_maker = ThreadPoolExecutor(1, "jobs-maker")


class _Claiming:
    """A pool process that claims jobs while no stock task comes."""

    #: Whether all processes read from one pipe: then a process that reads must hold the pipe's lock.
    is_shared = False

    def _make_child_methods(self, *args: Any, **kwargs: Any) -> None:
        super()._make_child_methods(*args, **kwargs)  # type: ignore[misc]
        worker: Any = self
        stock = worker.wait_for_job
        receive = self._receive_shared if self.is_shared else stock
        pipe = worker.inq._reader
        poll = select.poll()
        poll.register(pipe.fileno(), select.POLLIN)
        wait = waiter(pipe.fileno(), wakeup)
        runner: Runner | None = None

        def wait_for_job() -> Any:
            nonlocal runner
            if runner is None:
                # Made at the first call: by now the process has set its signals.
                app, hostname = worker.initargs
                is_wanted = lambda: bool(poll.poll(0))  # noqa: E731
                most, memory = worker.maxtasks or 0, worker.max_memory_per_child or 0
                runner = extensions.instead(Runner)(app, hostname, is_wanted, most, memory)
                runner.catch_soft_limits()
                for each in executors.present:
                    each.start(app, hostname)
            runner.in_stock = False
            _run_jobs(runner, poll, wait, worker._shutdown)
            runner.in_stock = True
            return receive()

        worker.wait_for_job = wait_for_job

    def _receive_shared(self) -> Any:
        worker: Any = self
        if not worker.inq._rlock.acquire(block=False):
            return None
        try:
            if not worker.inq._reader.poll(1.0 if worker_state.stopping_for is not None else 0):
                return None
            if (request := billiard.pool.pickle_loads(worker.inq._reader.recv_bytes())) is not None:
                return request
        except EOFError:
            pass
        finally:
            worker.inq._rlock.release()
        sys.exit(EX_FAILURE)


def _run_jobs(runner: Runner, poll: select.poll, wait: Callable[[float], bytes], shutdown: Any) -> None:
    """Run jobs until there is something in the pool's pipe, or the worker stops."""
    woken = b""
    try:
        while not poll.poll(0) and worker_state.stopping_for is None:
            if shutdown is not None and shutdown.is_set():
                _wait_for_others()
                sys.exit(EX_OK)
            if worker_state.stock_waits:
                runner.slot.rest(IDLE)
                offers.send()
                if poll.poll(OFFER):
                    return
            woken = b"" if runner.run_batch(woken) else wait(runner.patience)
    finally:
        if woken:
            # All other processes may sleep: wake one.
            wakeup.pass_on(woken)
    if worker_state.stopping_for is not None:
        _wait_for_others()


def waiter(pipe: int, wakeup: Wakeup) -> Callable[[float], bytes]:
    """:func:`wait` for a process of the pool.

    All processes wait for the same wake-ups. Linux wakes one of them for each; elsewhere all wake, and one takes it.
    """
    has_epoll = hasattr(select, "epoll")
    poll, unit = (select.epoll(), 1) if has_epoll else (select.poll(), 1000)
    poll.register(pipe, select.POLLIN)
    poll.register(wakeup.fileno(), select.POLLIN | (select.EPOLLEXCLUSIVE if has_epoll else 0))
    return partial(wait, lambda seconds: poll.poll(seconds * unit), pipe, wakeup)


def wait(poll: Callable[[float], list[Any]], pipe: Any, wakeup: Wakeup, seconds: float) -> bytes:
    """Wait so many seconds for the pool's pipe, or for a wake-up, which it takes and returns."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        ready = {descriptor for descriptor, _ in poll(left)}
        woken = wakeup.take() if wakeup.fileno() in ready else b""
        if pipe in ready:
            if woken:
                # All other processes may sleep: wake one.
                wakeup.pass_on(woken)
            break
        if woken:
            return woken
    return b""


def _wait_for_others() -> None:
    for each in executors.present:
        each.wait()


class _Worker(_Claiming, asynpool.Worker):
    pass


class _BlockingWorker(_Claiming, billiard.pool.Worker):
    is_shared = True


class AsynPool(asynpool.AsynPool):
    """Celery's pool, which knows of the jobs that its processes run, and lives while the broker is away."""

    Worker = _Worker

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Without it the queues of a process that dies before the first connection are never free again.
        kwargs.setdefault("on_process_down", self._forget)
        super().__init__(*args, **kwargs)
        strike = vars(self)["on_hard_timeout"]

        def on_hard_timeout(task: Any) -> None:
            # While the broker was away nobody read that the stock task has ended: its process may run a job by now.
            if not worker_state.is_busy(task._worker_pid):
                strike(task)

        self.on_hard_timeout = on_hard_timeout

    def _create_worker_process(self, i: int) -> Any:
        process = super()._create_worker_process(i)
        if not self._registered_with_event_loop and hasattr(self, "on_soft_timeout"):
            # It was made after the pool and before there is an event loop: no other code registers it.
            self._fileno_to_outq[process.outqR_fd] = process
            self._fileno_to_synq[process.synqW_fd] = process
        return process

    def did_start_ok(self) -> bool:
        # A process that died before the broker was reached has been replaced.
        return True

    def _forget(self, process: Any) -> None:
        self._all_inqueues.discard(process.inqW_fd)
        self._busy_workers.discard(process.inqW_fd)
        for index, fd in ((self._fileno_to_inq, process.inqW_fd), (self._fileno_to_outq, process.outqR_fd)):
            if index.get(fd) is process:
                del index[fd]

    def _worker_active(self, worker: Any) -> bool:
        """Whether ``pool_shrink`` must leave this process alone."""
        return worker_state.has_work(worker.pid) or bool(super()._worker_active(worker))

    def _create_write_handlers(self, hub: Any, *args: Any, **kwargs: Any) -> None:
        super()._create_write_handlers(hub, *args, **kwargs)
        look: Any = getattr(self, "on_poll_start")  # noqa: B009
        with_jobs: set[int] = set()
        busy, waiting = self._busy_workers, self.outbound_buffer

        def on_poll_start() -> None:
            """Celery writes a stock task to a process that is not in ``busy``: add the ones that run jobs."""
            if waiting or with_jobs:
                for fd, process in list(self._fileno_to_inq.items()):
                    if worker_state.is_busy(process.pid):
                        if fd not in busy:
                            busy.add(fd)
                            with_jobs.add(fd)
                    elif fd in with_jobs:
                        busy.discard(fd)
                        with_jobs.discard(fd)
                worker_state.stock_waits = bool(waiting) and len(busy) >= len(self._all_inqueues)
            elif worker_state.stock_waits:
                worker_state.stock_waits = False
            look()

        self.on_poll_start = on_poll_start
        hub.add_reader(offers.fileno(), offers.take)


class Lock:
    """A lock between processes (not threads). The kernel frees it when its holder dies."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="jobs-")  # noqa: SIM115  (it lives as long as its owner)

    def acquire(self, block: bool = True) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | (0 if block else fcntl.LOCK_NB))
        except (BlockingIOError, PermissionError):
            return False
        return True

    def release(self) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN)

    __enter__ = acquire

    def __exit__(self, *exc: object) -> None:
        self.release()


class BlockingPool(billiard.pool.Pool):
    """The pool of a transport without an event loop, as ``jobs://``. Its processes share two pipes, with a lock each.

    One process holds the lock while it waits for the next task. In billiard the lock is a semaphore: if this process is
    killed, no process can read a task any more, and the worker stands still for good.
    """

    Worker = _BlockingWorker

    def _create_worker_process(self, i: int) -> Any:
        """Make a process in a thread that lasts.

        Linux kills a pool process when the thread that made it ends (Celery sets ``PR_SET_PDEATHSIG``). The threads
        that replace dead processes and scale the pool are Celery's, and end in a warm stop before the bodies do.
        """
        if threading.current_thread() is threading.main_thread():
            return super()._create_worker_process(i)
        return _maker.submit(super()._create_worker_process, i).result()

    def _setup_queues(self) -> None:
        super()._setup_queues()
        self._inqueue._rlock = Lock()
        self._outqueue._wlock = Lock()

    def _worker_active(self, worker: Any) -> bool:
        return worker_state.has_work(worker.pid) or bool(super()._worker_active(worker))


class TaskPool(prefork.TaskPool):
    #: The worker's banner, and ``inspect stats``, name the pool by it.
    __module__ = prefork.__name__
    Pool = AsynPool
    BlockingPool = BlockingPool
