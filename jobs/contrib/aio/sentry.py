"""Sentry's scope, transaction and event of a run whose body is a coroutine.

Sentry's Celery integration wraps functions, and the steps of such a run are not functions. So this module does the same
around the steps, in the context of the run. What Sentry raises is logged, and changes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from jobs.conf.logs import logger
from jobs.conf.sentry import MODULE
from jobs.lifecycle.run import Run
from jobs.models.values import decoded


def around(run: Run) -> AbstractContextManager[None]:
    return _around(run, sys.modules[MODULE]) if MODULE in sys.modules else nullcontext()


@contextmanager
def _around(run: Run, integration: Any) -> Iterator[None]:
    with ExitStack() as entered:
        span: AbstractContextManager[Any] = nullcontext()
        with _harmless():
            span = _begin(run, integration, entered)
        with span:
            yield
        with _harmless():
            if (told := run.told) is not None:
                integration._capture_exception(run.task, (type(told), told, told.__traceback__))


@contextmanager
def _harmless() -> Iterator[None]:
    try:
        yield
    except Exception as exc:
        logger.error("Sentry failed, and the job goes on: %r", exc, extra={"action": "sentry_failed"})


def _begin(run: Run, integration: Any, entered: ExitStack) -> AbstractContextManager[Any]:
    """Enter the scope and the transaction; returns the span of the body."""
    sdk, request, name = sys.modules["sentry_sdk"], run.request, run.task.name
    if sdk.get_client().get_integration("celery") is None:
        return nullcontext()
    scope = entered.enter_context(sdk.isolation_scope())
    scope.clear_breadcrumbs()
    # Not the request's arguments: what is hidden stays so.
    given = (request.id, decoded(run.job.args), decoded(run.job.kwargs), request)
    scope.add_event_processor(integration._make_event_processor(run.task, *given))
    about = {"name": name, "origin": "auto.queue.celery"}
    begun = sdk.continue_trace(request.headers or {}, op="queue.task.celery", source="task", **about)
    begun.set_status("ok")
    entered.enter_context(sdk.start_transaction(begun))
    span: Any = sdk.start_span(op="queue.process", **about)
    span.set_data("messaging.message.id", request.id)
    span.set_data("messaging.destination.name", run.job.queue)
    found: AbstractContextManager[Any] = span
    return found
