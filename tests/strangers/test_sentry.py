"""Sentry's SDK: the trace goes on in the job, and a failure is one event."""

import pytest
import sentry_sdk
from sentry_sdk.integrations.celery import CeleryIntegration

from tests import tasks
from tests.helpers.harness import Worker, wait_ended
from tests.helpers.servers import wait_for
from tests.strangers import sentry
from tests.strangers.tasks import divides, divides_later, kills

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _set_up(tmp_path, monkeypatch):
    monkeypatch.setenv("STRANGERS_SENTRY", str(tmp_path / "sent"))
    sentry.init()
    assert sentry_sdk.get_client().get_integration(CeleryIntegration) is not None


def transactions(task) -> list[dict]:
    return [each for each in sentry.sent("transaction") if each["transaction"] == task.name]


@pytest.mark.parametrize("call", ["delay", "delay_many", "retry"])
def test_a_job_is_part_of_its_callers_trace(call, tmp_path):
    task = tasks.retries if call == "retry" else tasks.add
    with Worker(concurrency=1), sentry_sdk.start_transaction(name="sign up") as caller:
        if call == "delay_many":
            [result] = task.delay_many([(1, 2)])
        else:
            result = task.delay("a", 1) if call == "retry" else task.delay(1, 2)
        wait_ended(result.id)
        runs = wait_for(lambda: len(t := transactions(task)) == 1 + (call == "retry") and t, 10, "its transaction")
    assert {run["contexts"]["trace"]["trace_id"] for run in runs} == {caller.trace_id}
    [request] = [each for each in sentry.sent("transaction") if each["transaction"] == "sign up"]
    [span] = [span for span in request["spans"] if span["op"] == "queue.submit.celery"]
    assert runs[0]["contexts"]["trace"]["parent_span_id"] == span["span_id"]
    [process] = [span for span in runs[0]["spans"] if span["op"] == "queue.process"]
    assert 0 <= process["data"]["messaging.message.receive.latency"] < 30_000
    assert process["data"]["messaging.message.id"] == result.id


def test_a_failure_is_one_event():
    with Worker(concurrency=1) as worker:
        result = divides.delay(1, 0)
        wait_ended(result.id)
        assert worker.stop() == 0
    [event] = sentry.sent("event")
    assert event["exception"]["values"][-1]["type"] == "ZeroDivisionError"
    assert event["tags"]["celery_task_id"] == result.id


def test_what_no_body_raised_is_an_event_as_well():
    with Worker(concurrency=1) as worker:
        wait_ended(kills.delay().id)
        assert worker.stop() == 0
    assert any("kills" in str(event.get("logentry")) for event in sentry.sent("event"))


def test_an_async_body_has_a_scope_a_transaction_and_an_event():
    with Worker(concurrency=1) as worker, sentry_sdk.start_transaction(name="sign up") as caller:
        good, bad = divides_later.delay(1, 1), divides_later.delay(1, 0)
        wait_ended(good.id, bad.id)
        assert worker.stop() == 0
    runs = transactions(divides_later)
    assert {run["contexts"]["trace"]["trace_id"] for run in runs} == {caller.trace_id}
    assert len(runs) == 2
    for run in runs:
        assert {"queue.process", "wait"} <= {span["op"] for span in run["spans"]}
    [event] = sentry.sent("event")
    assert event["exception"]["values"][-1]["type"] == "ZeroDivisionError"
    assert event["tags"]["celery_task_id"] == bad.id
    assert event["tags"]["set in"] == "the body"
