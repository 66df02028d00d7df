"""The methods that a durable task has for its body, besides those of every task. Each has a form to await."""

from __future__ import annotations

import asyncio
import datetime
import inspect
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from hashlib import sha256
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.utils import timezone
from django.utils.module_loading import import_string

from jobs.contrib.durable.history import deadline_of, history_of, is_in_step, late, suspended
from jobs.contrib.durable.models import Step
from jobs.contrib.durable.signals import check_key
from jobs.errors import LONGEST
from jobs.lifecycle.run import current_run, on_thread
from jobs.lifecycle.transitions import now_plus
from jobs.models.values import jsonable

#: A time to wait: seconds or a timedelta from now, or a moment with its time zone.
Time = float | datetime.timedelta | datetime.datetime


def step(
    self: Any,
    name: str,
    function: Callable[..., Any] | None = None,
    *args: Any,
    retries: int | None = None,
    effect: bool = False,
    on_cancel: Callable[..., Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Do something once: its database effects, its result and the fence of the run are one commit.

    A later run gets the result, and does nothing.

    Parameters:
        name: what identifies the step in this body. A second step of the name is ``name#2``.
        function: called with the other arguments. Its result has to be JSON, or what may be an argument of a job.
        retries: how often it is tried again, with the pauses of the task's ``retry_backoff``, else of
            ``JOBS["RETRY"]``. None: what the task, or ``JOBS["RETRY"]``, says. What then fails fails the job, and
            ``jobs retry`` goes on here.
        effect: it is an external call: outside of a transaction, through the ledger (:func:`jobs.effect`). It gets
            ``idempotency_key=`` if it takes that.
        on_cancel: a function of a module, called with the same arguments if the job is cancelled after this step.

    Raises:
        what the function raised, when no attempt is left; in later runs as well.
    """
    if iscoroutinefunction(function):
        raise TypeError(f"the function of the step {name!r} is async: await self.astep() in an async def body")
    function = _checked(name, function)
    if (history := history_of(self)) is None:
        return function(*args, **kwargs)
    undo = None if on_cancel is None else _undo(on_cancel, args, kwargs)
    call = partial(_through_ledger, self, function, args, kwargs) if effect else partial(function, *args, **kwargs)
    return history.step(name, call, retries, undo, not effect)


def _checked(name: Any, function: Any) -> Callable[..., Any]:
    if not callable(function):
        what = "the name comes first" if callable(name) else f"{function!r} is no function: give it, and not its result"
        raise TypeError(f"self.step(name, function, *args): {what}")
    return function


def _through_ledger(self: Any, function: Callable[..., Any], args: Any, kwargs: Any, row: Step) -> Any:
    with _ledger(self, row) as call:
        if not call.done:
            call.answered(function(*args, **_keyed(function, call, kwargs)))
    return call.answer


def _ledger(self: Any, row: Step) -> Any:
    """The external call of this step. A second step of the name, and a step that is done again, have another call."""
    # Both are extensions, and durable tasks do without the ledger until a step asks for it.
    from jobs.contrib.effects.ledger import effect

    name, _, number = row.name.partition("#")
    if len(name) > 100:
        name = f"{name[:60]} {sha256(name.encode()).hexdigest()[:32]}"
    return effect(name, str(self.job.pk), *filter(None, (number, row.key.strip())))


def _undo(function: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Any]:
    path = f"{function.__module__}.{getattr(function, '__qualname__', '')}"
    try:
        found = import_string(path)
    except ImportError:
        found = None
    if found is not function or iscoroutinefunction(function):
        raise TypeError(
            f"on_cancel={function!r} must be a plain function of a module: another process has to find it by name"
        )
    try:
        inspect.signature(function, follow_wrapped=False).bind(*args, **kwargs)
    except ValueError:
        # A function of C may not say what it takes.
        pass
    except TypeError as exc:
        raise TypeError(f"on_cancel={path} is called with the arguments of its step, and cannot be: {exc}") from None
    return {"function": path, "args": jsonable(list(args), "args"), "kwargs": jsonable(kwargs, "kwargs")}


def sleep(self: Any, time: Time, name: str = "sleep") -> None:
    """Wait, without a process: the run ends, and the next one goes on here. ``jobs run ID`` ends the wait.

    Parameters:
        time: seconds, a timedelta, or the moment until which.
    """
    until = _moment(time)
    if (history := history_of(self)) is not None:
        history.sleep(name, until)


def wait_for(self: Any, key: str, timeout: Time | None = None, name: str | None = None) -> Any:
    """Wait, without a process, for :func:`jobs.signal` of this key; returns its payload, or None when the time is over.

    Parameters:
        timeout: seconds, a timedelta, or a moment. None: as long as it takes.
        name: of the step; by default the key.
    """
    until = None if timeout is None else _moment(timeout)
    if (history := history_of(self)) is None:
        raise RuntimeError(f"wait_for({key!r}) needs a job: enqueue the task (in a test run_jobs() runs it)")
    return history.wait_for(check_key(key), name or f"wait for {key.replace('#', ' ')}"[:240], until)


def gather(self: Any, signatures: Sequence[Any], return_exceptions: bool = False, name: str = "gather") -> list[Any]:
    """Call tasks, each a job, and wait without a process until all have ended; returns their results in order.

    Parameters:
        signatures: calls of transactional tasks: ``[invite.s(friend), ...]``.
        return_exceptions: the list holds the exceptions of children that failed. Else the first failure fails the job
            here, and after ``jobs retry`` of the child and then of this job it goes on.
    """
    if (history := history_of(self)) is None:
        raise RuntimeError("gather() needs a job: enqueue the task (in a test run_jobs() runs it)")
    return history.gather(name, list(signatures), return_exceptions)


def version(self: Any, name: str) -> bool:
    """Whether this job takes the new way of changed code: not if an earlier run has gone past this point.

    ``if self.version("2026-11"): (the new way) else: (the old way)``.
    """
    return True if (history := history_of(self)) is None else history.version(f"version {name}")


async def astep(self: Any, name: str, function: Callable[..., Any] | None = None, *args: Any, **options: Any) -> Any:
    """:meth:`step` for ``async def`` bodies.

    An ``async def`` function is awaited before the transaction of the step, which keeps its result: so it runs at least
    once. A plain function is called in that transaction, on a thread.
    """
    function = _checked(name, function)
    if not iscoroutinefunction(function) and not options.get("effect"):
        return await on_thread(partial(step, self, name, function, *args, **options))
    if not iscoroutinefunction(function):
        # No transaction is open, so it may take long. Other runs need the thread of the run's connection.
        function = sync_to_async(function)
    said = {option: options.pop(option, None) for option in ("retries", "effect", "on_cancel")}
    if (history := await on_thread(partial(history_of, self))) is None:
        return await function(*args, **options)
    call = _athrough_ledger if said["effect"] else _awaited
    undo = None if said["on_cancel"] is None else _undo(said["on_cancel"], args, options)
    return await history.astep(name, partial(call, self, function, args, options), said["retries"], undo)


async def _awaited(self: Any, function: Callable[..., Any], args: Any, kwargs: Any, row: Step) -> Any:
    return await function(*args, **kwargs)


async def _athrough_ledger(self: Any, function: Callable[..., Any], args: Any, kwargs: Any, row: Step) -> Any:
    async with _ledger(self, row) as call:
        if not call.done:
            call.answered(await function(*args, **_keyed(function, call, kwargs)))
    return call.answer


def _keyed(function: Callable[..., Any], call: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """With the key of the call, for a function that takes it."""
    takes = "idempotency_key" in inspect.signature(function).parameters
    return {**kwargs, "idempotency_key": call.key} if takes else kwargs


def _awaitable(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await on_thread(partial(method, self, *args, **kwargs))

    return call


def _plain(method: Callable[..., Any]) -> Callable[..., Any]:
    name = method.__name__

    @wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if self.is_async and asyncio._get_running_loop() is not None:
            raise TypeError(f"self.{name}() would block the event loop: await self.a{name}() in an async def body")
        return method(self, *args, **kwargs)

    return call


def _noted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """The form to await of a method. A run notes the calls that its body has not awaited yet."""

    @wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        made = method(self, *args, **kwargs)
        if (run := current_run()) is not None:
            left = vars(run).setdefault("not_awaited", deque())
            while left and inspect.getcoroutinestate(left[0][1]) != inspect.CORO_CREATED:
                left.popleft()
            left.append((name, made))
        return made

    markcoroutinefunction(call)
    return call


#: The methods that ``durable=True`` adds to a task, each also in a form to await.
METHODS: dict[str, Callable[..., Any]] = {
    **{each.__name__: _plain(each) for each in (step, sleep, wait_for, gather, version)},
    "astep": _noted("astep", astep),
    **{
        f"a{each.__name__}": _noted(f"a{each.__name__}", _awaitable(each))
        for each in (sleep, wait_for, gather, version)
    },
}


def _moment(given: Any) -> Any:
    time = given
    if isinstance(given, datetime.datetime):
        if timezone.is_naive(given):
            raise ValueError(f"{given!r} needs a time zone: use django.utils.timezone")
        time = given - timezone.now()
    seconds = time.total_seconds() if isinstance(time, datetime.timedelta) else time
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"a time to wait is seconds, a timedelta or a datetime, and not {given!r}")
    if not seconds <= LONGEST:
        raise ValueError(f"{given!r} is more than ten years: pass seconds, not milliseconds")
    return given if isinstance(given, datetime.datetime) else now_plus(max(0.0, seconds))


def wrap(run: Any) -> Any:
    """The function of a durable task: a run that a wait has ended does not go on, even if the body caught that."""
    function = getattr(run, "__func__", run)
    is_bound = not isinstance(run, staticmethod)

    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return function(*([self] if is_bound else []), *args, **kwargs)

    if iscoroutinefunction(function):

        @wraps(function)
        async def body(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            with _isolated(self) as isolation, _in_time(self):
                if isolation is None:
                    return _unless_suspended(self, await call(self, *args, **kwargs))
                # Its queries have the connections of another thread.
                await sync_to_async(isolation.watch_connections)()
                try:
                    return _unless_suspended(self, await call(self, *args, **kwargs))
                finally:
                    await sync_to_async(isolation.unwatch_connections)()

    else:

        @wraps(function)
        def body(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            with _isolated(self):
                return _unless_suspended(self, call(self, *args, **kwargs))

    body.goes_on = True  # type: ignore[attr-defined]
    return body


def _unless_suspended(self: Any, result: Any) -> Any:
    """The result of a body, unless a wait has ended the run."""
    if (run := current_run()) is None:
        return result
    if (over := suspended(run)) is not None:
        raise over
    if run.task.name != self.name:
        return result
    for name, made in vars(run).get("not_awaited", ()):
        if inspect.getcoroutinestate(made) == inspect.CORO_CREATED:
            tasks = asyncio.all_tasks() if asyncio._get_running_loop() is not None else ()
            if made not in [task.get_coro() for task in tasks]:
                # Otherwise Python warns as well.
                made.close()
            raise TypeError(
                f"the body did not await self.{name}(), which did nothing: say await self.{name}(...), or await the "
                f"task made of it, in an async def body, and self.{name[1:]}(...) in a plain one"
            )
    return result


@contextmanager
def _isolated(task: Any) -> Iterator[Any]:
    """Code outside of steps runs again at each wake: ``JOBS["ISOLATION"]`` says when such code writes."""
    isolation, run = sys.modules.get("jobs.contrib.isolation.isolation"), current_run()
    if isolation is None or run is None or run.task.name != task.name:
        yield None
        return
    with isolation.repeated(lambda: not is_in_step(run)) as is_watched:
        yield isolation if is_watched else None


@contextmanager
def _in_time(task: Any) -> Iterator[None]:
    """A coroutine that waits for something ends at its deadline."""
    run = current_run()
    if run is None or run.task.name != task.name or (deadline := deadline_of(run)) is None:
        yield
        return
    began: Any = run.job.started_at
    left = (deadline - began).total_seconds() - (time.monotonic() - run.entered)
    timer = asyncio.get_running_loop().call_later(left, vars(run)["awaited"].end, late())
    try:
        yield
    finally:
        timer.cancel()
