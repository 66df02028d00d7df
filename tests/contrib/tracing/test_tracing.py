"""A run is tied to the call that it does the work of, whoever runs it, and when."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import chain
from celery.exceptions import SoftTimeLimitExceeded, WorkerShutdown
from django.db import OperationalError, connection, transaction
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from jobs.conf import problems
from jobs.contrib.operations import by_hand
from jobs.contrib.tracing import spans as tracing
from jobs.events.models import Event
from jobs.lifecycle import transitions
from jobs.models import Job
from jobs.testing import run_jobs
from tests import tasks
from tests.contrib.events import tasks as event_tasks
from tests.helpers import misbehaving
from tests.helpers.concurrency import autocommit_off
from tests.helpers.harness import ROOT, Worker, deliver, effects, environment, wait_ended
from tests.helpers.servers import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(autouse=True)
def _node(node):
    pass


class Spans:
    """What was exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @contextmanager
    def span(self, name: str) -> Iterator[trace.Span]:
        with self.provider.get_tracer("tests").start_as_current_span(name) as span:
            yield span

    def all(self, operation: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name.split()[0] == operation]

    def only(self, operation: str) -> ReadableSpan:
        [span] = self.all(operation)
        return span


@pytest.fixture
def spans(monkeypatch):
    spans = Spans()
    monkeypatch.setattr(tracing, "tracer", spans.provider.get_tracer("jobs"))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: spans.provider)
    monkeypatch.setattr(tracing, "_told", False)
    return spans


def same(one: Any, other: Any) -> bool:
    return (one.trace_id, one.span_id) == (other.trace_id, other.span_id)


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def key_of(span: Any) -> tuple[int, int]:
    return span.get_span_context().trace_id, span.get_span_context().span_id


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def again(result) -> tuple[str, Any]:
    """The next run of a job that waits for its time."""
    by_hand.run_now(Job.objects.get(pk=result.id).pk, "default")
    return deliver(result)


def test_a_run_is_the_root_of_its_own_trace_with_a_link_to_the_call(spans):
    with spans.span("request") as request:
        result = tasks.effect.apply_async(["a secret"], queue="mail")
    assert deliver(result)[0] == "SUCCESS"
    create, process = spans.only("create"), spans.only("process")
    assert (create.name, create.kind) == ("create mail", SpanKind.PRODUCER)
    assert same(create.parent, request.get_span_context())
    assert (process.name, process.kind, process.parent) == ("process mail", SpanKind.CONSUMER, None)
    assert process.get_span_context().trace_id != request.get_span_context().trace_id
    assert links(process) == [key_of(create)]
    job = Job.objects.get()
    assert attributes(process) == {
        "messaging.system": "celery",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "mail",
        "messaging.message.id": result.id,
        "jobs.task": "tests.tasks.effect",
        "jobs.lease": 1,
        "jobs.retries": 0,
        "jobs.node": str(job.node_id),
        "jobs.outcome": "succeeded",
    }
    assert process.status.status_code is StatusCode.UNSET
    assert attributes(create)["messaging.operation.type"] == "create"
    assert "secret" not in "".join(span.to_json() for span in (create, process))


def test_the_span_of_a_run_covers_its_completion(spans, monkeypatch):
    succeed_ = transitions.succeed

    def traced(*args):
        with spans.span("succeed"):
            return succeed_(*args)

    monkeypatch.setattr(transitions, "succeed", traced)
    deliver(tasks.effect.delay("a"))
    process, succeed = spans.only("process"), spans.only("succeed")
    assert same(succeed.parent, process.get_span_context())
    assert succeed.end_time <= process.end_time
    assert not trace.get_current_span().get_span_context().is_valid, "and nothing is current afterwards"


def test_a_call_that_is_rolled_back_leaves_no_span(spans):
    with spans.span("request"), pytest.raises(ZeroDivisionError), transaction.atomic():
        tasks.effect.delay("a")
        raise ZeroDivisionError
    with transaction.atomic():
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            tasks.effect.delay("b")
            raise ZeroDivisionError
        tasks.effect.delay("c")
        assert spans.all("create") == []
    assert [job.args for job in Job.objects.all()] == [["c"]]
    assert attributes(spans.only("create"))["messaging.message.id"] == str(Job.objects.get().pk)


def test_with_autocommit_off_a_call_has_its_span_as_well(spans):
    with autocommit_off():
        tasks.effect.delay("a")
        connection.commit()
    assert attributes(spans.only("create"))["messaging.message.id"] == str(Job.objects.get().pk)


def test_each_of_many_calls_has_its_span_and_a_unique_one_that_was_there_has_none(spans):
    results = tasks.effect.delay_many([("a",), ("b",)])
    tasks.summary.delay("mon")
    assert tasks.summary.delay("mon").existing
    made = [attributes(span)["messaging.message.id"] for span in spans.all("create")]
    assert len(made) == 3
    assert set(made) == {str(job.pk) for job in Job.objects.all()}
    for result in results:
        deliver(result)
    assert [links(span) for span in spans.all("process")] == [[key_of(span)] for span in spans.all("create")[:2]]


def test_every_attempt_is_a_span_with_a_link_to_the_same_call(spans):
    with spans.span("request"):
        result = tasks.gives_up.delay("a")
    assert deliver(result)[0] == "RETRY"
    assert again(result)[0] == "RETRY"
    assert again(result)[0] == "FAILURE"
    create, runs = spans.only("create"), spans.all("process")
    assert [links(run) for run in runs] == [[key_of(create)]] * 3
    assert len({run.get_span_context().trace_id for run in runs}) == 3
    told = [attributes(run) for run in runs]
    assert [(one["jobs.lease"], one["jobs.retries"], one["jobs.outcome"]) for one in told] == [
        (1, 0, "retried"),
        (2, 1, "retried"),
        (3, 2, "failed"),
    ]
    assert {run.status.status_code for run in runs} == {StatusCode.ERROR}


def test_a_body_that_raises(spans):
    deliver(tasks.raises.delay("no"))
    process = spans.only("process")
    assert (process.status.status_code, process.status.description) == (StatusCode.ERROR, "ValueError: no")
    [event] = process.events
    said = dict(event.attributes or {})
    assert (event.name, said["exception.type"], said["exception.message"]) == ("exception", "ValueError", "no")
    assert "in raises" in str(said["exception.stacktrace"])
    assert (attributes(process)["jobs.outcome"], attributes(process)["error.type"]) == ("failed", "ValueError")


def test_an_exception_without_text_is_told_as_well(spans):
    deliver(misbehaving.misbehaves.delay("a", "unspeakable"))
    assert attributes(spans.only("process"))["error.type"] == "Unspeakable"
    assert not tracing._told


@pytest.mark.parametrize(
    ("call", "outcome", "status"),
    [
        (lambda: tasks.retries.delay("a", 1), "retried", StatusCode.UNSET),
        (lambda: tasks.snoozes.delay("a", 60), "snoozed", StatusCode.UNSET),
        (lambda: tasks.steps_out.delay("a", "requeue"), "handed_back", StatusCode.UNSET),
        (lambda: tasks.steps_out.delay("a", "ignore"), "cancelled", StatusCode.UNSET),
        (lambda: tasks.raises.delay("exit"), "failed", StatusCode.ERROR),
    ],
)
def test_the_ends_of_a_run_are_told_apart(spans, call, outcome, status):
    deliver(call())
    process = spans.only("process")
    assert (attributes(process)["jobs.outcome"], process.status.status_code) == (outcome, status)


def test_the_row_says_what_became_of_a_run_and_not_the_body(spans, settings):
    settings.JOBS = {**settings.JOBS, "MAX_SNOOZES": 1}
    deliver(tasks.snoozes.delay("a", 60))
    assert attributes(spans.only("process"))["jobs.outcome"] == Job.objects.get().state == "failed"


def test_a_zombie_is_told_apart(spans):
    from jobs import signals as ours

    def lose(job, using, **kwargs):
        Job.objects.filter(pk=job.pk).update(lease=job.lease + 1)

    ours.started.connect(lose)
    try:
        deliver(tasks.effect.delay("a"))
    finally:
        ours.started.disconnect(lose)
    process = spans.only("process")
    assert (attributes(process)["jobs.outcome"], process.status.status_code) == ("lost_lease", StatusCode.ERROR)


def test_a_run_that_finds_no_database_to_settle_is_told_apart(spans, monkeypatch):
    def away(job, error):
        raise OperationalError("away")

    monkeypatch.setattr(transitions, "fail", away)
    monkeypatch.setattr("jobs.lifecycle.run.RECONNECT", (0.0,))
    deliver(tasks.raises.delay("no"))
    process = spans.only("process")
    assert (attributes(process)["jobs.outcome"], process.status.status_code) == ("not_settled", StatusCode.ERROR)


def test_a_run_that_its_worker_breaks_off_is_told_apart(spans, monkeypatch):
    def stop(key, note=""):
        raise WorkerShutdown(0)

    monkeypatch.setattr(tasks.effect._get_current_object(), "run", stop)
    with pytest.raises(WorkerShutdown):
        deliver(tasks.effect.delay("a"))
    assert attributes(spans.only("process"))["jobs.outcome"] == "interrupted"


def test_a_duplicate_is_no_run(spans):
    result = tasks.effect.delay("a")
    deliver(result)
    deliver(result)
    assert len(spans.all("process")) == 1


def test_a_job_that_a_body_enqueued_is_tied_to_that_run(spans):
    with spans.span("request"):
        result = tasks.enqueues.delay("a")
    deliver(result)
    child = Job.objects.exclude(pk=result.id).get()
    assert deliver(type(result)(str(child.pk)))[0] == "SUCCESS"
    (_, create), (first, second) = spans.all("create"), spans.all("process")
    assert same(create.parent, first.get_span_context())
    assert links(second) == [key_of(create)]


def test_what_celery_sends_after_a_run_is_tied_to_it(spans):
    """Chains and links leave when the run's span has ended."""
    with spans.span("request"):
        result = chain(tasks.effect.si("a"), tasks.effect.si("b")).apply_async()
    deliver(result.parent)
    create = spans.all("create")[-1]
    assert same(create.parent, spans.only("process").get_span_context())
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_run_can_be_the_calls_child(spans, settings):
    settings.JOBS = {**settings.JOBS, "TRACE": "child"}
    with spans.span("request"):
        result = tasks.gives_up.delay("a")
    deliver(result)
    with spans.span("ambient") as ambient:
        again(result)
    create, (first, second) = spans.only("create"), spans.all("process")
    assert same(first.parent, create.get_span_context())
    assert same(second.parent, create.get_span_context())
    assert (links(first), links(second)) == ([key_of(create)], [key_of(create), key_of(ambient)])


def test_a_run_within_another_span_is_its_child_and_keeps_its_link(spans):
    result = tasks.effect.delay("a")
    with spans.span("ambient") as ambient:
        deliver(result)
    assert same(spans.only("process").parent, ambient.get_span_context())
    assert links(spans.only("process")) == [key_of(spans.only("create"))]


def test_baggage_travels_to_the_run_and_on(spans):
    token = context.attach(baggage.set_baggage("tenant", "acme"))
    try:
        result = tasks.enqueues.delay("a")
    finally:
        context.detach(token)
    deliver(result)
    assert {job.headers["baggage"] for job in Job.objects.all()} == {"tenant=acme"}


def test_the_callers_own_context_is_kept(spans):
    with spans.span("request"):
        result = tasks.effect.apply_async(["a"], headers={"traceparent": PARENT})
    assert Job.objects.get().headers["traceparent"] == PARENT
    assert spans.all("create") == []
    deliver(result)
    assert links(spans.only("process")) == [(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)]


@pytest.mark.parametrize("header", [5, None, ["x"], {}, "nonsense"])
def test_a_context_that_is_none_harms_nothing(spans, header):
    result = tasks.effect.delay("a")
    Job.objects.update(options={"headers": {"traceparent": header}})
    assert deliver(result)[0] == "SUCCESS"
    assert links(spans.only("process")) == []


def test_without_a_provider_the_context_travels_all_the_same():
    remote = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=True, trace_flags=trace.TraceFlags(1)))
    with trace.use_span(remote):
        result = tasks.effect.delay("a")
    assert Job.objects.get().headers["traceparent"] == f"00-{1:032x}-{2:016x}-01"
    assert deliver(result)[0] == "SUCCESS"


def test_not_traced(spans, settings):
    settings.JOBS = {**settings.JOBS, "TRACE": None}
    with spans.span("request"):
        result = tasks.effect.delay("a")
    deliver(result)
    assert "traceparent" not in Job.objects.get().headers
    assert [span.name for span in spans.exporter.get_finished_spans()] == ["request"]


class Broken(SpanProcessor):
    def on_start(self, span, parent_context=None):
        if "start" in self.where:
            raise RuntimeError("on_start")

    def on_end(self, span):
        if "end" in self.where:
            raise RuntimeError("on_end")

    def __init__(self, where: str) -> None:
        self.where = where


class BrokenPropagator:
    fields = {"traceparent"}

    def inject(self, carrier, context=None, setter=None):
        raise RuntimeError("inject")

    def extract(self, carrier, context=None, getter=None):
        raise RuntimeError("extract")


class Poisonous(BrokenPropagator):
    """No database takes what it writes."""

    def inject(self, carrier, context=None, setter=None):
        carrier["traceparent"] = "\0"

    def extract(self, carrier, context=None, getter=None):
        return context


@pytest.mark.parametrize("how", ["start", "end", "propagator", "poison"])
def test_what_opentelemetry_raises_harms_no_job_and_is_logged_once(spans, how, caplog, monkeypatch):
    if how == "propagator":
        monkeypatch.setattr(propagate, "_HTTP_TEXT_FORMAT", BrokenPropagator())
    elif how == "poison":
        monkeypatch.setattr(propagate, "_HTTP_TEXT_FORMAT", Poisonous())
    else:
        spans.provider.add_span_processor(Broken(how))
    with caplog.at_level(logging.INFO, "jobs"):
        with transaction.atomic():
            results = [tasks.effect.delay("a"), tasks.effect.delay("b")]
        failing = tasks.raises.delay("no")
        assert [deliver(result)[0] for result in results] == ["SUCCESS", "SUCCESS"]
        assert deliver(failing)[0] == "FAILURE"
    assert effects() == {"a": 1, "b": 1}
    assert [job.state for job in Job.objects.order_by("pk")] == ["succeeded", "succeeded", "failed"]
    told = [record for record in caplog.records if getattr(record, "action", "") == "tracing_failed"]
    assert [record.levelname for record in told] == ["ERROR"]
    assert not trace.get_current_span().get_span_context().is_valid


class Interrupting(SpanProcessor):
    """A soft time limit can strike anywhere."""

    def __init__(self, operation: str) -> None:
        self.operation = operation

    def on_start(self, span, parent_context=None):
        if span.name.startswith(self.operation):
            raise SoftTimeLimitExceeded

    def on_end(self, span):
        if span.name.startswith("process"):
            raise SoftTimeLimitExceeded


def test_a_soft_limit_is_the_bodys_and_comes_too_late_for_a_run_that_is_settled(spans):
    finished, limited = tasks.effect.delay("a"), tasks.enqueues.delay("b")
    spans.provider.add_span_processor(Interrupting("create"))
    assert deliver(finished)[0] == "SUCCESS"
    assert deliver(limited)[0] == "FAILURE"
    assert Job.objects.get(pk=limited.id).error["type"] == "SoftTimeLimitExceeded"
    assert effects() == {"a": 1}
    assert not trace.get_current_span().get_span_context().is_valid, "else the next run would be part of this one"


@pytest.fixture
def instrumented(spans):
    """Celery's own instrumentation beside ours."""
    CeleryInstrumentor().instrument(tracer_provider=spans.provider)
    yield
    CeleryInstrumentor().uninstrument()


def test_celerys_instrumentation_writes_no_other_context(spans, instrumented):
    with spans.span("request") as request:
        with spans.span("view") as view:
            result = tasks.gives_up.delay("a")
            assert key_of(trace.get_current_span()) == key_of(view), "its span is not left current"
        assert key_of(trace.get_current_span()) == key_of(request)
    deliver(result)
    again(result)
    create = spans.only("create")
    assert same(create.parent, view.get_span_context())
    assert [links(span) for span in spans.all("process")] == [[key_of(create)]] * 2
    outer = spans.all("run/tests.tasks.gives_up")
    assert [span.parent.span_id for span in spans.all("process")] == [key_of(span)[1] for span in outer]
    assert {span.parent.span_id for span in outer} == {key_of(create)[1]}


def test_the_spans_of_a_real_process(spans, tmp_path):
    written = tmp_path / "spans"
    with spans.span("request"):
        result = tasks.retries.delay("a", 1)
    create = spans.only("create").get_span_context()

    def runs() -> list[dict]:
        lines = map(json.loads, written.read_text().splitlines()) if written.exists() else ()
        return [line for line in lines if line["name"].startswith("process")]

    with Worker(concurrency=1, JOBS_TEST_SPANS=str(written)):
        [job] = wait_ended(result.id)
        wait_for(lambda: len(runs()) == job.lease, 10, "its spans")
    assert job.state == "succeeded"
    assert [run["attributes"]["jobs.lease"] for run in runs()] == [1, 2]
    assert [run["attributes"]["jobs.outcome"] for run in runs()] == ["retried", "succeeded"]
    for run in runs():
        assert run["parent_id"] is None
        assert run["context"]["trace_id"] != f"0x{create.trace_id:032x}"
        [link] = run["links"]
        assert link["context"]["trace_id"] == f"0x{create.trace_id:032x}"
        assert link["context"]["span_id"] == f"0x{create.span_id:016x}"


@pytest.mark.parametrize(
    ("broken", "env", "said"),
    [
        ("sys.modules['opentelemetry'] = None", {}, 0),
        ("", {"OTEL_PROPAGATORS": "none-such"}, 1),
    ],
    ids=["not installed", "not to be imported"],
)
def test_without_opentelemetry_nothing_happens(broken, env, said):
    code = f"""
import sys, uuid
{broken}
import django; django.setup()
import shop.celery
from jobs.contrib.tracing import spans as tracing
from jobs.lifecycle.worker_state import worker_state
from jobs.models import Job, Node
from tests import tasks
from tests.contrib.events import tasks as event_tasks
from tests.helpers.harness import deliver
worker_state.node = Node.objects.create(pk=uuid.uuid4(), hostname="x", pid=1).pk
result = tasks.effect.delay("a")
print(tracing.is_installed, deliver(result)[0], "traceparent" in Job.objects.get(pk=result.id).headers)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=environment(**env), capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["False", "SUCCESS", "False"], done.stderr
    assert done.stderr.count("OpenTelemetry cannot be imported") == said


# Events


def test_a_handlers_run_is_tied_to_what_told_of_the_event(spans):
    with spans.span("request") as request:
        event_tasks.thing_lost("a")
    assert list(Event.objects.get().headers) == ["traceparent"]
    [job] = run_jobs()
    assert job.parent_id == Event.objects.get().uuid
    assert links(spans.only("process")) == [key_of(request)]


def test_without_opentelemetry_an_event_has_no_headers():
    event_tasks.thing_lost("a")
    with connection.cursor() as cursor:
        cursor.execute("SELECT headers FROM jobs_event")
        assert cursor.fetchall() == [(None,)]


async def sees_its_span():
    async def child():
        await asyncio.sleep(0)
        return trace.get_current_span().get_span_context().span_id

    before = trace.get_current_span().get_span_context().span_id
    return [before, *await asyncio.gather(child(), child()), await asyncio.to_thread(_span_id)]


def _span_id():
    return trace.get_current_span().get_span_context().span_id


def test_the_span_of_an_async_body_is_its_own_while_it_awaits(spans, declare):
    with spans.span("request") as caller:
        result = declare(body=sees_its_span).delay()
    run_jobs()
    process = spans.only("process")
    assert Job.objects.get(pk=result.id).result == [process.context.span_id] * 4
    assert process.context.trace_id != caller.get_span_context().trace_id
    assert caller.get_span_context().trace_id in [trace_id for trace_id, _ in links(process)]


def test_it_is_a_link_or_a_child(settings):
    settings.JOBS = {"TRACE": "parent"}
    assert "'link' or 'child'" in problems()[0]
