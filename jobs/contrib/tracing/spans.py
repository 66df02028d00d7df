"""Traces across the queue: OpenTelemetry's context travels from the call, in the row's headers, to all runs of the job.

Spans and attributes are named by OpenTelemetry's conventions for messaging; others are called ``jobs.*``. They contain
no arguments and no results. Exceptions of OpenTelemetry are logged once, and change nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from celery.exceptions import SoftTimeLimitExceeded

from jobs.conf import conf
from jobs.errors import LostLease, NotSettled
from jobs.models.values import storable

logger = logging.getLogger("jobs")

try:
    from opentelemetry import context, propagate, trace
    from opentelemetry.trace import Link, Span, SpanKind, StatusCode
except ImportError:
    is_installed = False
except Exception:
    # For example, OTEL_PROPAGATORS names a propagator that is not installed.
    logger.exception("OpenTelemetry cannot be imported; jobs are not traced", extra={"action": "tracing_failed"})
    is_installed = False
else:
    is_installed = True
    #: It uses the provider that the project sets, now or later.
    tracer = trace.get_tracer("jobs")

if TYPE_CHECKING:
    from jobs.lifecycle.run import Run
    from jobs.models import Job


def _is_on(given: Any = True) -> bool:
    """Whether to trace. In most processes OpenTelemetry is not set up, and only a given context matters."""
    if not is_installed or conf().TRACE is None:
        return False
    is_set_up = not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    return bool(given or is_set_up or context.get_current())


@contextmanager
def _attached(here: Any, is_late: bool = False) -> Iterator[None]:
    """Make the context the current one for a block."""
    token: Any = None
    with _harmless():
        token = context.attach(here)
    try:
        yield
    finally:
        if token is not None:
            with _harmless(is_late):
                context.detach(token)


def apart() -> AbstractContextManager[None]:
    """Keep the caller's span: receivers of Celery's signals may set another one and not restore it."""
    return _attached(context.get_current()) if _is_on() else nullcontext()


def create(job: Job, given: Mapping[str, Any] | None, caller: Any) -> None:
    """Put the context of the call into the headers of its row, with a span that :func:`created` ends.

    Parameters:
        given: the caller's own ``headers=``. A context in them is kept, but not one that other libraries wrote: so a
            retry, whose headers come from its row, keeps the context of the first call.
        caller: the task whose run makes the call. Celery sends links and chains when the run's span has ended.
    """
    if not _is_on(given):
        return
    with _harmless():
        fields = propagate.get_global_textmap().fields
        carrier = {name: value for name, value in (given or {}).items() if name in fields}
        if not _creation(carrier)[1].is_valid:
            here = context.get_current()
            if not trace.get_current_span(here).get_span_context().is_valid:
                run = getattr(caller and caller.request, "jobs_run", None)
                here = getattr(run, "trace_context", None) or here
            span = _start("create", job, here, SpanKind.PRODUCER)
            # Without a provider the span may be invalid: then the present context travels all the same.
            if span.get_span_context().is_valid:
                here = trace.set_span_in_context(span, here)
            injected: dict[str, Any] = {}
            propagate.inject(injected, here)
            carrier = injected | carrier
            if span.is_recording():
                vars(job)["span"], job.is_awaited = span, True
        if carrier:
            job.options["headers"] = {**job.headers, **storable(carrier, "the context")}


def carried() -> dict[str, Any]:
    """The current context, for the headers of an event: the runs of its handlers are connected to it."""
    carrier: dict[str, Any] = {}
    if _is_on(None):
        with _harmless():
            propagate.inject(carrier)
    return storable(carrier, "the context") if carrier else carrier


def created(job: Job, app: Any) -> None:
    """End the span of a committed call. A span ends only then, so a call that is rolled back leaves no trace."""
    if (span := vars(job).pop("span", None)) is not None:
        with _harmless():
            span.end()


def processing(run: Run) -> AbstractContextManager[None]:
    """The span of a run, from its claim until it is finished."""
    return _processing(run, time.time_ns()) if _is_on(run.job.options) else nullcontext()


@contextmanager
def _processing(run: Run, began: int) -> Iterator[None]:
    """
    Parameters:
        began: nanoseconds since the epoch.
    """
    span = raised = None
    with _harmless():
        span, here = _process(run, began)
    if span is None:
        yield
        return
    try:
        # Detach the context first, whatever fails: else the next run would become part of this run's trace.
        with _attached(here, is_late=True):
            yield
    except BaseException as exc:
        raised = exc
        raise
    finally:
        with _harmless(is_late=True):
            _tell(span, run, raised)
        with _harmless(is_late=True):
            span.end()


def _process(run: Run, began: int) -> tuple[Span, Any]:
    around, creation = _creation(run.job.headers)
    ambient = trace.get_current_span()
    links = [Link(creation)] if creation.is_valid else []
    if conf().TRACE == "child" and creation.is_valid:
        if ambient.get_span_context().is_valid:
            links.append(Link(ambient.get_span_context()))
    else:
        # Use the caller's baggage, but not its span: a trace that is open for hours, or over many retries, is useless.
        around = trace.set_span_in_context(ambient, around)
    own = {"jobs.lease": run.job.lease, "jobs.retries": run.job.retries, "jobs.node": str(run.job.node_id)}
    span = _start("process", run.job, around, SpanKind.CONSUMER, own, links=links, start_time=began)
    vars(run)["trace_context"] = here = trace.set_span_in_context(span, around)
    return span, here


def _tell(span: Span, run: Run, raised: BaseException | None) -> None:
    """Write the outcome of the run into the span. An attempt that raised is an error, even if it is retried."""
    error: dict[str, Any] | None
    if run.outcome is None:
        outcome = {LostLease: "lost_lease", NotSettled: "not_settled"}.get(type(raised), "interrupted")
        error = {"type": type(raised).__name__, "message": str(raised), "traceback": ""}
    else:
        outcome, error = run.outcome, run.job.own_error
    span.set_attribute("jobs.outcome", outcome)
    # Retry: the body asked for another attempt without an error.
    if error is None or outcome in ("succeeded", "snoozed", "cancelled") or error["type"] == "Retry":
        return
    event = {"exception.type": error["type"], "exception.message": error["message"]}
    span.add_event("exception", {**event, "exception.stacktrace": error["traceback"]})
    span.set_attribute("error.type", error["type"])
    span.set_status(StatusCode.ERROR, f"{error['type']}: {error['message']}")


def _creation(headers: Mapping[str, Any]) -> tuple[Any, Any]:
    """The context in the headers (which may hold anything in a foreign message), and that of the span in it."""
    texts = {name: value for name, value in headers.items() if isinstance(value, str)}
    found = propagate.extract(texts, context.Context())
    return found, trace.get_current_span(found).get_span_context()


def _start(operation: str, job: Job, here: Any, kind: SpanKind, own: Mapping[str, Any] = {}, **more: Any) -> Span:
    """Start a span, with all attributes that a sampler may need."""
    attributes = {
        "messaging.system": "celery",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": job.queue,
        "messaging.message.id": str(job.pk),
        "jobs.task": job.task,
        **own,
    }
    return tracer.start_span(f"{operation} {job.queue}", here, kind, attributes, **more)


#: Whether it was already logged that OpenTelemetry fails in this process.
_told = False


@contextmanager
def _harmless(is_late: bool = False) -> Iterator[None]:
    """Catch exceptions of OpenTelemetry, and log the first one; after the run, catch a time limit as well."""
    global _told
    try:
        yield
    except SoftTimeLimitExceeded:
        if not is_late:
            raise
    except Exception as exc:
        level, _told = logging.DEBUG if _told else logging.ERROR, True
        text = "OpenTelemetry failed, and the job goes on: %r"
        logger.log(level, text, exc, exc_info=True, extra={"action": "tracing_failed"})
