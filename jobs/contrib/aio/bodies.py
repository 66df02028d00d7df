"""The event loop of a process, with the bodies that it runs at once.

The loop has a thread. A second one has the connection over which bodies are claimed, begun, and completed, one after
the other. What bodies themselves ask of the database by Django's async ORM has a third one, which is asgiref's: no
body that is slow there keeps another one from its completion.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
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
from jobs.contrib.aio.here import END
from jobs.contrib.aio.owner import owner
from jobs.contrib.aio.runner import AsyncRunner
from jobs.errors import Cancel, LostLease
from jobs.execution import pipeline
from jobs.lifecycle import wakeups
from jobs.lifecycle.run import Run, current_run
from jobs.lifecycle.wakeups import Wakeup
from jobs.lifecycle.worker_state import AWAITS, REVOKED, ProcessState, worker_state

#: How many a process claims at first; while there are more, twice as many each time. So others get some of a few.
FIRST, MOST = 10, 200

#: So many are begun before the first of them gets to its coroutine.
BEGUN = 50

#: Seconds for which a full process waits when bodies end, so that it claims for several.
GATHER = 0.02

#: Seconds until it is tried again to have slots for its bodies.
PAUSE = 5.0

#: Seconds between two looks at who is asked to end.
TICK = 0.25

#: What the row says of one that was asked to end, if nobody has left a note of it.
ASKED = {REVOKED: "revoked at the worker"}

#: Seconds between two looks at the connection that bodies have used; one that raised is looked after at once.
TIDY = 1.0

#: So many runs are completed by one statement, at the most; what takes longer than so many seconds is told at once.
TOGETHER, SLOW = 100, 0.005

#: A run whose next step is to be taken, and what takes the answer: the step, or what was raised.
_Ready = tuple[Run, Context, pipeline.Steps, "asyncio.Future[Any]"]
_Taken = tuple["asyncio.Future[Any]", Any, BaseException | None]


class Bodies:
    """What runs them beside each process (``worker/beside.py``)."""

    def __init__(self, tasks: tuple[str, ...]) -> None:
        self.tasks, self.done = tasks, 0
        self.running: dict[Run, Awaited] = {}
        self.ticked_at = 0.0
        self.thread: int | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._is_retired = self._wakes_at_end = self._ticks = False
        self._tidy_at = 0.0
        self._ready: list[_Ready] = []
        #: Some of them are on the thread.
        self._is_away = False
        #: Made before the worker forks. A process that waits for a plain job takes no wake-up of it, nor this of one.
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
        first, *self._slots = self._block()
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
                # asyncio lets through what would end the process, of a task that a body made.
                logger.error("the event loop goes on after %r", exc, extra=worker_state.about("loop_broken"))
                if claims.done():
                    time.sleep(1.0)
                    claims = self.loop.create_task(self._claim_forever())

    def _block(self) -> list[ProcessState]:
        """The slots of its bodies. Those of a process that died are free again when its bodies were finished."""
        while True:
            try:
                return worker_state.take_block(conf().ASYNC_CONCURRENCY)
            except RuntimeError as exc:
                text = "this process runs no async bodies at the moment: %s"
                logger.error(text, exc, extra=worker_state.about("loop_failed"))
                time.sleep(PAUSE)

    def _make_task(self, loop: Any, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        """Know whose body it is part of."""
        task = asyncio.Task(coroutine, loop=loop, **options)
        if (run := current_run()) is not None and (awaited := self.running.get(run)) is not None:
            awaited.children.add(task)
        return task

    async def on_thread(self, call: Callable[[], Any]) -> Any:
        run: Any = partial(copy_context().run, call)
        return await self.loop.run_in_executor(self._executor, run)

    # Claims

    async def _claim_forever(self) -> None:
        size = FIRST
        while True:
            self._woken.clear()
            runs: list[Run] = []
            is_more = False
            if self._slots and not self._is_retired:
                slots = self._slots[: min(len(self._slots), size)]
                runs, is_more = await self.on_thread(partial(self._runner.take_some, slots))
            for first in range(0, len(runs), BEGUN):
                await self._begin(runs[first : first + BEGUN])
            size = min(2 * size, MOST) if is_more else FIRST
            if not is_more or not self._slots:
                await self._sleep(not self._slots or self._is_retired)

    async def _sleep(self, is_full: bool) -> None:
        """Until a claim may find more. A process that has no place for more leaves the wake-ups to others."""
        self._wakes_at_end = is_full
        if not is_full:
            self.loop.add_reader(self._wakeup.fileno(), self._hear)
        try:
            async with asyncio.timeout(self._runner.patience):
                await self._woken.wait()
            if is_full:
                await asyncio.sleep(GATHER)
        except TimeoutError:
            pass
        finally:
            self.loop.remove_reader(self._wakeup.fileno())

    def _hear(self) -> None:
        # All there are: whoever gets as many jobs as it asked for wakes the next one.
        if self._wakeup.take_all():
            self._woken.set()

    # Runs

    async def _begin(self, runs: list[Run]) -> None:
        """Begin some at once: each way from the loop to the thread takes its time."""
        if not self._ticks:
            self._ticks, self.ticked_at = True, time.monotonic()
            self.loop.call_later(TICK, self._tick)
        for run in runs:
            assert isinstance(run.slot, ProcessState)
            self._slots.remove(run.slot)
            self.running[run] = Awaited(run, self.on_thread)
        for begun in await self.on_thread(lambda: [self._begin_one(run) for run in runs]):
            self.loop.create_task(self._take_to_its_end(*begun), context=Context())

    def _begin_one(self, run: Run) -> tuple[Run, Context, pipeline.Steps, Any]:
        # The steps, and the coroutine between them, have one context, whatever thread they are in.
        own, steps = Context(), pipeline.steps(run)
        own.run(owner.set, run)
        try:
            return run, own, steps, own.run(self._runner.begin, run, steps)
        except BaseException as exc:
            return run, own, steps, exc

    async def _take_to_its_end(self, run: Run, own: Context, steps: pipeline.Steps, step: Any) -> None:
        try:
            if isinstance(step, BaseException):
                raise step
            while step is not END:
                if step is None:
                    await self._await(self.running[run], own)
                else:
                    await asyncio.sleep(step)
                step = await self._go_on(run, own, steps)
        except BaseException as exc:
            # What it had is an orphan now.
            log(logging.ERROR, run.job, "ended unexpectedly", "run_broken", exc_info=exc)
        finally:
            self.done += 1
            run.slot.free()
            self._slots.append(run.slot)
            del self.running[run]
            if self._wakes_at_end or run.job.limit_key is not None:
                self._woken.set()

    async def _go_on(self, run: Run, own: Context, steps: pipeline.Steps) -> Any:
        """The next step, on the thread. While that is at work, others gather: all go there, and come back, together."""
        taken: asyncio.Future[Any] = self.loop.create_future()
        self._ready.append((run, own, steps, taken))
        if not self._is_away:
            self._send()
        return await taken

    def _send(self) -> None:
        batch, self._ready = self._ready[:TOGETHER], self._ready[TOGETHER:]
        self._is_away = bool(batch)
        if batch:
            assert self._executor is not None
            self._executor.submit(self._go_on_all, batch)

    def _go_on_all(self, batch: list[_Ready]) -> None:
        self._runner.complete([(run, own) for run, own, _, _ in batch])
        found: list[_Taken] = []
        told_at = time.monotonic()
        for run, own, steps, taken in batch:
            try:
                found.append((taken, own.run(self._runner.go_on, run, steps), None))
            except BaseException as exc:
                found.append((taken, None, exc))
            if time.monotonic() - told_at > SLOW:
                # Nobody waits for a function of ``Task.commit`` that takes long.
                self.loop.call_soon_threadsafe(_tell, found)
                found, told_at = [], time.monotonic()
        self.loop.call_soon_threadsafe(self._come_back, found)

    def _come_back(self, found: list[_Taken]) -> None:
        _tell(found)
        self._send()

    async def _await(self, awaited: Awaited, own: Context) -> None:
        run, slot = awaited.run, awaited.run.slot
        # The limits are those of the coroutine: it may have waited for the thread, and its completion may.
        late = time.monotonic() - slot.began
        slot.limit(*(at and at + late for at in (slot.soft_at, slot.hard_at)))
        slot.enter(AWAITS)
        timers = []
        if slot.soft_at:
            timers.append(self.loop.call_at(slot.soft_at, awaited.strike, SoftTimeLimitExceeded()))
        if slot.hard_at:
            limit: Any = TimeLimitExceeded(round(slot.hard_at - slot.began, 3))
            # No policy of retries makes another attempt of it.
            limit.ends_job = True
            timers.append(self.loop.call_at(slot.hard_at, awaited.end, limit))
        try:
            await self.loop.create_task(awaited.drive(), context=own)
        finally:
            slot.limit(0.0, 0.0)
            for timer in timers:
                timer.cancel()
        awaited.conclude()
        if awaited.raised is not None or time.monotonic() > self._tidy_at:
            self._tidy_at = time.monotonic() + TIDY
            # Nobody waits for it: it comes before what others ask after it.
            self._tidying = self.loop.create_task(self._tidy(run.using))

    async def _tidy(self, using: str) -> None:
        """Leave the other bodies a connection that is safe to use."""
        await sync_to_async(self._runner.tidy)(using)

    def _tick(self) -> None:
        self.ticked_at = time.monotonic()
        for run, awaited in list(self.running.items()):
            if run.job.node_id != worker_state.node:
                # The node was declared dead, and has a new id: the job is another one's.
                awaited.end(LostLease("this run lost its lease"))
            if (kind := run.slot.wished(run.job.pk, run.job.lease)) is not None:
                verdict = Cancel(ASKED.get(kind, "the job was asked to end"))
                verdict.kind = kind
                awaited.end(verdict)
        self._ticks = bool(self.running)
        if self._ticks:
            self.loop.call_later(TICK, self._tick)


def _tell(found: list[_Taken]) -> None:
    for taken, step, exc in found:
        if exc is None:
            taken.set_result(step)
        else:
            taken.set_exception(exc)
