"""A task whose body is an ``async def``: its ``run`` becomes a plain function, which makes the coroutine, or ends it.

Celery's autoretry wraps ``run``, and a base class of the project may call it. So a run goes through it twice: to make
the coroutine, and after its end to return its result, or raise its exception.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from asgiref.sync import iscoroutinefunction, sync_to_async

from jobs.conf import is_stock, problems
from jobs.contrib.aio import inline
from jobs.contrib.aio.celery_stacks import own_stacks
from jobs.contrib.aio.commits import Commit
from jobs.lifecycle.run import current_run


def declared(task: type[Any]) -> None:
    """See ``doors.Extension``. ``TypeError``: it is declared with ``atomic=True``."""
    if problems() or is_stock(task.name):
        return
    run = inspect.getattr_static(task, "run")
    function = getattr(run, "__func__", run)
    if getattr(function, "__globals__", {}).get("__name__") == "celery.app.base" and _is_async(function):
        # Celery's wrapper makes a model of what the function returns, and here that is a coroutine.
        raise TypeError("pydantic=True is for plain bodies: make the models in the async def body: Model(**data)")
    if iscoroutinefunction(function):
        if task.atomic and ("atomic" in task.declared or "atomic" in vars(task)):
            raise TypeError(
                "atomic=True would keep a transaction open while the async def body awaits: leave it out, and return "
                "self.commit(function, ...), which is called in one transaction with the job's completion (bind=True)"
            )
        function = _run(task, function, has_self=not isinstance(run, staticmethod))
        task.run = staticmethod(function) if isinstance(run, staticmethod) else function
    # The class may inherit from an async task, and have a plain body.
    task.is_async = hasattr(function, "awaits")
    if task.is_async:
        # Its atomic part is the commit.
        task.atomic = True
        own_stacks(task)


def _is_async(function: Callable[..., Any]) -> bool:
    return bool(iscoroutinefunction(inspect.unwrap(function)))


def _run(task: type[Any], function: Callable[..., Any], has_self: bool) -> Callable[..., Any]:
    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        own = args[0] if has_self else task
        now = current_run()
        # Everything else is a plain call: from Python, from ``apply()``, from the body that calls itself.
        part = vars(now).get("awaited") if now is not None and now.task.name == own.name else None
        if part is not None and (step := part.next_call) is not None:
            part.next_call = None
            return step(function, *args, **kwargs)
        request = own.request_stack.top
        if request is not None and (request.is_eager or not (request.called_directly or request.jobs_run)):
            # Celery's own tracer awaits nothing.
            return inline.call(_plainly, function, *args, **kwargs)
        return _plainly(function, *args, **kwargs)

    # Of a function that only returns a coroutine: asgiref's mark on Python 3.11, and that of 3.12 and later.
    for mark in ("_is_coroutine", "_is_coroutine_marker"):
        vars(run).pop(mark, None)
    run.awaits = run  # type: ignore[attr-defined]
    return run


async def _plainly(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    result = await function(*args, **kwargs)
    return await sync_to_async(result.alone)() if isinstance(result, Commit) else result
