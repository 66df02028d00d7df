"""The event loop of a process, with the bodies that it runs at once.

The loop has a thread. A second thread has the connection over which bodies are claimed, begun and completed, one after
the other. The queries of bodies through Django's async ORM have a third thread, which is asgiref's: a slow query does
not delay the completion of another body.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async
from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded
from django.db import connections

from jobs.conf import conf
from jobs.conf.logs import log, logger
from jobs.contrib.aio import blocked
from jobs.contrib.aio.awaited import Awaited
from jobs.contrib.aio.celery_stacks import owner
from jobs.contrib.aio.commits import Commit
from jobs.contrib.aio.runner import AsyncRunner
from jobs.contrib.aio.slots import take_block, wished
from jobs.errors import Cancel, LostLease
from jobs.execution import pipeline
from jobs.lifecycle import wakeups
from jobs.lifecycle.run import Run, current_run
from jobs.lifecycle.wakeups import Wakeup
from jobs.lifecycle.worker_state import AWAITS, REVOKED, ProcessState, worker_state

#: How many jobs a process claims at first, the factor while there are more, and the most: others get some of a few.
FIRST, GROWTH, MOST = 10, 2, 200

#: A process that asked for fewer than FEW jobs, and got them all, waits TURN seconds before it asks for more. It has
#: woken another process, which takes its share meanwhile.
FEW, TURN = 40, 0.01

#: This many runs are begun before the first of them gets to its coroutine.
BEGUN = 50

#: Seconds for which a full process waits after a body has ended, so that one claim fills several slots.
GATHER = 0.02

#: A loop that plain jobs have woken in vain more than VAIN times, each within WITHIN seconds, waits BEHIND seconds
#: before it looks: the plain jobs start first, and one look answers several wake-ups.
VAIN, WITHIN, BEHIND = 3, 0.2, 0.01

#: Python looks for garbage after this many new objects for each slot. A body that waits has more objects than that, and
#: they are no garbage: with Python's own threshold, it would look at all bodies again and again.
ALIVE = 20

#: Seconds between two attempts to get slots for the bodies.
PAUSE = 5.0

#: Seconds between two looks for bodies that are asked to end.
TICK = 0.25

#: What the row of a job says that was asked to end, if there is no ``Cancellation`` of it.
ASKED = {REVOKED: "revoked at the worker"}

#: Seconds between two looks at the connection that bodies use; after a body has raised, there is a look at once.
TIDY = 1.0

#: At most TOGETHER runs are completed by one statement. After SLOW seconds, the loop hears of the steps at once.
TOGETHER, SLOW = 100, 0.005

#: A run whose next step is to be taken; and a run with the step that was taken, or the exception that it raised.
_Ready = tuple[Run, Context, pipeline.Steps]
_Taken = tuple[Run, Context, pipeline.Steps, Any]


class Bodies:
    """Runs the async bodies of a process, beside its plain jobs (``worker/executors.py``)."""

    def __init__(self, tasks: tuple[str, ...]) -> None:
        self.tasks, self.done = tasks, 0
        self.running: dict[Run, Awaited] = {}
        self.ticked_at = 0.0
        self.thread: int | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._is_retired = self._wakes_at_end = self._ticks = False
        self._tidy_at = 0.0
        self._ready: list[_Ready] = []
        #: How many runs the thread has taken, and the loop has started.
        self._taken = self._started = 0
        #: How many looks in a row found nothing, and when the last look was.
        self._vain, self._vain_at = 0, 0.0
        #: Some runs are on the thread.
        self._is_away = False
        #: Made before the worker forks. It is apart from the wake-ups for plain jobs: neither takes those of the other.
        self._wakeup = Wakeup()
        wakeups.wakeup.others.append(self._wakeup)

    def start(self, app: Any, hostname: str) -> None:
        threading.Thread(target=self._run, args=(app, hostname), name="jobs-loop", daemon=True).start()

    def retire(self) -> bool:
        self._is_retired = True
        return not self.running

    def wait(self) -> None:
        while self.running:
            time.sleep(0.05)
        if self._executor is not None:
            self._executor.submit(connections.close_all)

    def _run(self, app: Any, hostname: str) -> None:
        first, *slots = self._block()
        self._slots = deque(slots)
        if (young := gc.get_threshold()[0]) > 0:
            gc.set_threshold(max(young, ALIVE * len(slots)), *gc.get_threshold()[1:])
        self._runner = AsyncRunner(app, hostname, self.tasks, first, self._wakeup)
        self._executor = ThreadPoolExecutor(1, "jobs-async")
        self.thread, self.loop = threading.get_ident(), asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self.loop.set_task_factory(self._make_task)
        self._woken = asyncio.Event()
        threading.Thread(target=blocked.watch, args=(self,), name="jobs-loop-watch", daemon=True).start()
        claims = self.loop.create_task(self._claim_forever())
        while True:
            try:
                self.loop.run_until_complete(claims)
            except BaseException as exc:
                # asyncio does not catch an exception that would end the process, from a task that a body made.
                logger.error("the event loop goes on after %r", exc, extra=worker_state.about("loop_broken"))
                if claims.done():
                    time.sleep(1.0)
                    claims = self.loop.create_task(self._claim_forever())

    def _block(self) -> list[ProcessState]:
        """Take the slots of the bodies. The slots of a dead process are free again when its bodies were finished."""
        while True:
            try:
                return take_block(conf().ASYNC_CONCURRENCY)
            except RuntimeError as exc:
                text = "this process runs no async bodies at the moment: %s"
                logger.error(text, exc, extra=worker_state.about("loop_failed"))
                time.sleep(PAUSE)

    def _make_task(self, loop: Any, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        """Make an asyncio task, and note the body that it is a part of."""
        task = asyncio.Task(coroutine, loop=loop, **options)
        if (run := current_run()) is not None and (awaited := self.running.get(run)) is not None:
            awaited.children.add(task)
            task.add_done_callback(awaited.children.discard)
        return task

    async def on_thread(self, call: Callable[[], Any]) -> Any:
        run: Any = partial(copy_context().run, call)
        return await self.loop.run_in_executor(self._executor, run)

    # Claims

    async def _claim_forever(self) -> None:
        size = FIRST
        while True:
            self._woken.clear()
            is_more, before, asked = False, self._taken, size
            # Race: the process may end at any time once it stops, and takes no call on its thread any more.
            if self._slots and not self._is_retired and worker_state.stopping_for is None:
                assert self._executor is not None
                taken: asyncio.Future[tuple[bool, int]] = self.loop.create_future()
                self._executor.submit(self._take, size, taken)
                is_more, size = await taken
                now = time.monotonic()
                is_stream = self._taken == before and now - self._vain_at < WITHIN
                self._vain, self._vain_at = self._vain + 1 if is_stream else 0, now
            if is_more and self._slots:
                if asked < FEW:
                    await asyncio.sleep(TURN)
            else:
                await self._sleep(not self._slots or self._is_retired)

    def _take(self, size: int, taken: asyncio.Future[tuple[bool, int]]) -> None:
        """Claim, and begin several runs at once: each way from the thread to the loop takes its time.

        The thread claims again by itself while there are more jobs and nothing to complete: the loop may be busy.
        If most bodies wait for the loop, a body may block it, and other processes should get the rest of the jobs.
        """
        try:
            is_more = self._take_some(size)
            size = min(GROWTH * size, MOST) if is_more else FIRST
            is_free = bool(self._slots) and not (self._is_retired or self._is_away)
            if is_more and is_free and size > FEW and 2 * (self._taken - self._started) <= len(self.running):
                assert self._executor is not None
                self._executor.submit(self._take, size, taken)
            else:
                self.loop.call_soon_threadsafe(taken.set_result, (is_more, size))
        except BaseException as exc:
            self.loop.call_soon_threadsafe(taken.set_exception, exc)

    def _take_some(self, size: int) -> bool:
        slots = [self._slots.popleft() for _ in range(min(size, len(self._slots)))]
        used: set[Any] = set()
        try:
            runs, is_more = self._runner.take_some(slots)
            used = {run.slot for run in runs}
        finally:
            self._slots.extend(slot for slot in slots if slot not in used)
        self._taken += len(runs)
        for first in range(0, len(runs), BEGUN):
            self.loop.call_soon_threadsafe(self._start, [self._begin(run) for run in runs[first : first + BEGUN]])
        return is_more

    async def _sleep(self, is_full: bool) -> None:
        """Wait until a claim may find more. A process without a free slot leaves the wake-ups to other processes."""
        self._wakes_at_end = is_full
        if not is_full:
            self.loop.add_reader(self._wakeup.fileno(), self._hear)
        try:
            async with asyncio.timeout(self._runner.patience):
                await self._woken.wait()
            if is_full or self._vain > VAIN:
                await asyncio.sleep(GATHER if is_full else BEHIND)
        except TimeoutError:
            pass
        finally:
            self.loop.remove_reader(self._wakeup.fileno())

    def _hear(self) -> None:
        # Take all wake-ups: a process that gets as many jobs as it asked for wakes the next process.
        if self._wakeup.take_all():
            self._woken.set()

    # Runs

    def _begin(self, run: Run) -> _Taken:
        # The steps, and the coroutine between them, have one context, in whatever thread they run.
        own, steps = Context(), pipeline.steps(run)
        self.running[run] = Awaited(run, self.on_thread)
        own.run(owner.set, run)
        return run, own, steps, self._step(self._runner.begin, run, own, steps)

    def _step(self, take: Callable[..., Any], run: Run, own: Context, steps: pipeline.Steps) -> Any:
        try:
            return own.run(take, run, steps)
        except BaseException as exc:
            return exc

    def _start(self, begun: list[_Taken]) -> None:
        self._started += len(begun)
        if not self._ticks:
            self._ticks, self.ticked_at = True, time.monotonic()
            self.loop.call_later(TICK, self._tick)
        self._next(begun)

    def _next(self, taken: list[_Taken]) -> None:
        """What follows the steps that were taken."""
        for run, own, steps, step in taken:
            if step is None:
                self._await(run, own, steps)
            elif isinstance(step, float | int):
                self.loop.call_later(step, self._go_on, run, own, steps)
            else:
                if isinstance(step, BaseException):
                    # Its job is an orphan now.
                    log(logging.ERROR, run.job, "ended unexpectedly", "run_broken", exc_info=step)
                self._leave(run)

    def _leave(self, run: Run) -> None:
        assert isinstance(run.slot, ProcessState)
        self.done += 1
        run.slot.free()
        self._slots.append(run.slot)
        del self.running[run]
        # Otherwise the run and its ``Awaited`` keep each other until the next garbage collection.
        del vars(run)["awaited"]
        # If a child task goes on, the progress that it reports is lost.
        run.aside, run.body = lambda call: None, None
        if self._wakes_at_end or run.job.limit_key is not None:
            self._vain = 0
            self._woken.set()

    def _go_on(self, run: Run, own: Context, steps: pipeline.Steps) -> None:
        """Take the next step, on the thread. While that is busy, runs gather: they go there and come back together."""
        self._ready.append((run, own, steps))
        if not self._is_away:
            self._is_away = True
            # Together with all bodies that end in this turn of the loop.
            self.loop.call_soon(self._send)

    def _send(self) -> None:
        batch, self._ready = self._ready[:TOGETHER], self._ready[TOGETHER:]
        self._is_away = bool(batch)
        if batch:
            assert self._executor is not None
            self._executor.submit(self._go_on_all, batch)

    def _go_on_all(self, batch: list[_Ready]) -> None:
        for run, _, _ in batch:
            if run.slot.hard_at:
                run.slot.limit(0.0, 0.0)
        try:
            self._runner.complete([(run, own) for run, own, _ in batch])
        except Exception:
            # Each run settles its own outcome after this.
            logger.exception("several bodies cannot end together", extra=worker_state.about("completion_broken"))
        found: list[_Taken] = []
        told_at = time.monotonic()
        for run, own, steps in batch:
            if (left := self.running[run].left) and isinstance(self.running[run].result, Commit):
                # The function of ``Task.commit`` holds up all other runs. No exception can be raised on this thread.
                run.slot.limit(0.0, time.monotonic() + left)
            found.append((run, own, steps, self._step(self._runner.go_on, run, own, steps)))
            if left and run.slot.hard_at:
                run.slot.limit(0.0, 0.0)
            if time.monotonic() - told_at > SLOW:
                # Other runs do not wait for a slow function of ``Task.commit``.
                self.loop.call_soon_threadsafe(self._next, found)
                found, told_at = [], time.monotonic()
        self.loop.call_soon_threadsafe(self._come_back, found)

    def _come_back(self, found: list[_Taken]) -> None:
        self._next(found)
        self._send()

    def _await(self, run: Run, own: Context, steps: pipeline.Steps) -> None:
        awaited = self.running[run]
        task = self.loop.create_task(self._drive(awaited), context=own)
        task.add_done_callback(partial(self._conclude, awaited, own, steps))

    async def _drive(self, awaited: Awaited) -> None:
        slot = awaited.run.slot
        # The limits are for the coroutine alone, and not for its wait for the thread and the loop, before or after it.
        if slot.soft_at or slot.hard_at:
            late = time.monotonic() - slot.began
            slot.limit(*(at and at + late for at in (slot.soft_at, slot.hard_at)))
            self._limit(awaited)
        slot.enter(AWAITS)
        await awaited.drive()

    def _limit(self, awaited: Awaited) -> None:
        """Set timers for limits that come soon. A later look finds the rest in time, and few runs last until then."""
        slot, soon = awaited.run.slot, time.monotonic() + 2 * TICK
        if 0 < slot.soft_at < soon and "soft" not in awaited.timers:
            strike = self.loop.call_at(slot.soft_at, awaited.strike, SoftTimeLimitExceeded())
            awaited.timers["soft"] = strike
        if 0 < slot.hard_at < soon and "hard" not in awaited.timers:
            limit: Any = TimeLimitExceeded(round(slot.hard_at - slot.began, 3))
            # No retry policy makes another attempt.
            limit.ends_job = True
            awaited.timers["hard"] = self.loop.call_at(slot.hard_at, awaited.end, limit)

    def _conclude(self, awaited: Awaited, own: Context, steps: pipeline.Steps, task: asyncio.Task[None]) -> None:
        run = awaited.run
        if run.slot.soft_at or run.slot.hard_at:
            # A run that was ended keeps its hard limit until the thread takes it: the thread may hang in its step.
            if awaited.verdict is None and run.slot.hard_at:
                awaited.left = max(TICK, run.slot.hard_at - time.monotonic())
            run.slot.limit(0.0, 0.0 if awaited.verdict is None else run.slot.hard_at)
        for timer in awaited.timers.values():
            timer.cancel()
        if task.cancelled():
            # Other code found it among all asyncio tasks, and cancelled it before its first step.
            self._next([(run, own, steps, asyncio.CancelledError())])
            return
        awaited.conclude()
        if awaited.raised is not None or time.monotonic() > self._tidy_at:
            self._tidy_at = time.monotonic() + TIDY
            # No code awaits it: it comes before the queries that other bodies make after it.
            self._tidying = self.loop.create_task(self._tidy(run.using))
        self._go_on(run, own, steps)

    async def _tidy(self, using: str) -> None:
        """Leave the other bodies a connection that is safe to use."""
        await sync_to_async(self._runner.tidy)(using)

    def _tick(self) -> None:
        self.ticked_at, node = time.monotonic(), worker_state.node
        # A copy, because the thread begins other runs meanwhile.
        for run, awaited in self.running.copy().items():
            if awaited.task is not None:
                self._limit(awaited)
            if run.job.node_id != node:
                # The node was declared dead, and has a new id: the job belongs to another run.
                awaited.end(LostLease("this run lost its lease"))
            if (kind := wished(run.slot, run.job.pk, run.job.lease)) is not None:
                verdict = Cancel(ASKED.get(kind, "the job was asked to end"))
                verdict.kind = kind
                awaited.end(verdict)
        self._ticks = bool(self.running)
        if self._ticks:
            self.loop.call_later(TICK, self._tick)
