"""Sentry's SDK, if a project uses it: its Celery integration patches ``celery.Task``, whose calls are not ours."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

Call = TypeVar("Call", bound=Callable[..., Any])


def _wrapper(name: str) -> Any:
    """A wrapper of its Celery integration; None without it."""
    return getattr(sys.modules.get("sentry_sdk.integrations.celery"), name, None)


def traced(call: Call) -> Call:
    """Wrap a task's method as Sentry wraps Celery's ``apply_async``: in a span, and with its trace in ``headers=``."""

    @wraps(call)
    def around(*args: Any, **kwargs: Any) -> Any:
        wrap = _wrapper("_wrap_task_run")
        return (call if wrap is None else wrap(call))(*args, **kwargs)

    return around  # type: ignore[return-value]


def around(step: str, task: Any, call: Any) -> Any:
    """Wrap a step of a run as Sentry wraps that step of Celery's tracer, for which it patches ``build_tracer``.

    Parameters:
        step: ``_wrap_tracer``, the whole run, for its scope and transaction; or ``_wrap_task_call``, for its span, and
            for the event of what it raises.
    """
    wrap = _wrapper(step)
    return call if wrap is None else wrap(task, call)


@contextmanager
def silent(is_wanted: bool) -> Iterator[None]:
    """Let it make no event of what is logged in the block, if its Celery integration makes one of the exception."""
    sdk = sys.modules.get("sentry_sdk")
    if not is_wanted or sdk is None or sdk.get_client().get_integration("celery") is None:
        yield
        return
    with sdk.new_scope() as scope:
        scope.add_event_processor(lambda event, hint: None)
        yield
