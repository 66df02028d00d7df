"""The coroutine of one run: it is awaited, a limit or a request may end it, and it has an outcome."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from celery.exceptions import TaskPredicate

from jobs.contrib.aio.commits import Commit
from jobs.errors import Replaced
from jobs.lifecycle.run import Run, Suspended, on_thread
from jobs.lifecycle.worker_state import AWAITS, BODY
from jobs.models.values import decoded


class Awaited:
    """
    Parameters:
        on_thread: awaits a plain function, with no arguments, on the thread that has the process's own connection.
    """

    def __init__(self, run: Run, on_thread: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
        self.run = run
        vars(run)["awaited"], run.aside, run.on_thread = self, self._aside, on_thread
        #: What the next call of the task's ``run`` in this run does.
        self.next_call: Callable[..., Any] | None = None
        #: The asyncio task of the body while it runs, and the asyncio tasks that the body made.
        self.task: asyncio.Task[Any] | None = None
        self.children: set[asyncio.Task[Any]] = set()
        self.result: Any = None
        self.raised: BaseException | None = None
        #: Why the run ends, however the body reacts: a time limit, or a request to end.
        self.verdict: Exception | None = None
        #: What is raised in the coroutine in place of the next ``CancelledError``.
        self._strike: Exception | None = None
        self._aside_calls: list[asyncio.Future[Any]] = []
        #: The timers of its time limits.
        self.timers: dict[str, asyncio.TimerHandle] = {}
        #: The seconds that its time limit leaves for the function of ``Task.commit``; 0: there is no limit.
        self.left = 0.0

    async def drive(self) -> None:
        """Await the body to its end. It never raises."""
        run = self.run
        self.task = asyncio.current_task()
        run.began = time.monotonic()
        try:
            self.next_call = lambda function, /, *args, **kwargs: function(*args, **kwargs)
            # A body may change what it was given.
            made = (run.task.own_call or run.task.run)(*decoded(run.job.args), **decoded(run.job.kwargs))
            self.result = await _Steps(self, made) if inspect.isawaitable(made) else made
            if self._aside_calls:
                await asyncio.gather(*self._aside_calls)
        except BaseException as exc:
            # Also an exception that would end the loop, and all other bodies with it.
            self.raised = self.struck(exc)
        finally:
            self.task = None
            # As asyncio.run() does.
            for child in self.children:
                child.cancel()
            while run.writes:
                await asyncio.wait(run.writes)

    def conclude(self) -> None:
        """Give the outcome to the run."""
        run = self.run
        if self.verdict is not None:
            self.raised = self.verdict
        elif self.raised is not None:
            self.raised = _said(self.raised)
        run.is_atomic = self.raised is None or isinstance(self.raised, Replaced)
        run.body = self._end_by_run if self.verdict is None and _is_wrapped(run.task) else self._end

    def _end_by_run(self, /, *args: Any, **kwargs: Any) -> Any:
        """End through the task's ``run``, and through all that wraps it."""
        self.next_call = self._end
        return self.run.task.run(*decoded(self.run.job.args), **decoded(self.run.job.kwargs))

    def _end(self, /, *args: Any, **kwargs: Any) -> Any:
        if self.raised is not None:
            raise self.raised
        if not isinstance(self.result, Commit):
            return self.result
        # Here, so that autoretry hears of what it raises. Another one that the body made does not count.
        # After a conflict the run must not end together with others (``runner._result``): there it has no transaction.
        self.run.promised = self.result
        return self.result.within(self.run.is_atomic)

    def _aside(self, call: Callable[[], Any]) -> None:
        if asyncio.events._get_running_loop() is None:
            call()
        else:
            self._aside_calls.append(asyncio.ensure_future(on_thread(call)))

    def strike(self, exc: Exception) -> None:
        """Raise the exception in the coroutine, at the ``await`` where it waits."""
        if self.task is not None and self.verdict is None:
            self._strike = exc
            self.task.cancel()

    def end(self, verdict: Exception) -> None:
        """Cancel the coroutine. The verdict is the outcome of the run, however the coroutine reacts."""
        if self.task is not None and self.verdict is None:
            self.verdict, self._strike = verdict, None
            self.task.cancel()

    def struck(self, exc: BaseException) -> BaseException:
        """The exception to raise in the coroutine in place of the one that came."""
        if not isinstance(exc, asyncio.CancelledError) or self._strike is None:
            return exc
        struck, self._strike = self._strike, None
        assert self.task is not None
        self.task.uncancel()
        return struck


def _said(exc: BaseException) -> BaseException:
    """What a body asked for in an ``asyncio.TaskGroup``, which wraps it. As with ``gather()``, the first counts."""
    if not isinstance(exc, BaseExceptionGroup):
        return exc
    first: BaseException = exc
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    if isinstance(first, Suspended | TaskPredicate):
        return first
    if getattr(first, "ends_job", False):
        exc.ends_job = True  # type: ignore[attr-defined]
    return exc


def _is_wrapped(task: Any) -> bool:
    """Whether something, such as autoretry, wraps the function that ``declare.py`` made of the task's ``run``."""
    function = getattr(task.run, "__func__", task.run)
    return getattr(function, "awaits", None) is not function


class _Steps:
    """Awaits the body, and notes in the worker state when its code runs: if the process dies then, this body did it."""

    def __init__(self, awaited: Awaited, made: Awaitable[Any]) -> None:
        self._awaited, self._made = awaited, made

    def __await__(self) -> Generator[Any, None, Any]:
        slot, steps = self._awaited.run.slot, self._made.__await__()
        exc: BaseException | None = None
        while True:
            slot.enter(BODY)
            try:
                waits_for = next(steps) if exc is None else steps.throw(exc)
            except StopIteration as end:
                return end.value
            finally:
                slot.enter(AWAITS)
            exc = None
            try:
                yield waits_for
            except BaseException as raised:
                exc = self._awaited.struck(raised)
