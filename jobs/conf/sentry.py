"""Sentry's SDK, if a project uses it: its Celery integration patches ``celery.Task``, whose calls are not ours."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: Sentry's Celery integration; it is imported only if the project uses it.
MODULE = "sentry_sdk.integrations.celery"


def traced(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a task's method as Sentry wraps Celery's ``apply_async``: in a span, and with its trace in ``headers=``."""
    wrap = getattr(sys.modules.get(MODULE), "_wrap_task_run", None)
    return call if wrap is None else wrap(call)


def around(step: str, task: Any, call: Any) -> Any:
    """Wrap a step of a run as Sentry wraps that step of Celery's tracer (by patching ``build_tracer``).

    Parameters:
        step: ``_wrap_tracer`` wraps the whole run, in a scope and transaction; ``_wrap_task_call`` wraps the body, in a
            span, and reports its exception.
    """
    wrap = getattr(sys.modules.get(MODULE), step, None)
    return call if wrap is None else wrap(task, call)


@contextmanager
def silent(is_wanted: bool) -> Iterator[None]:
    """Let Sentry report nothing that is logged in the block, if its Celery integration reports the exception."""
    sdk = sys.modules.get("sentry_sdk")
    if not is_wanted or sdk is None or sdk.get_client().get_integration("celery") is None:
        yield
        return
    with sdk.new_scope() as scope:
        scope.add_event_processor(lambda event, hint: None)
        yield
