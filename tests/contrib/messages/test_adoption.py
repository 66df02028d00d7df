"""A message that no ``delay()`` of ours sent becomes a job: it gets its row, is acknowledged, and runs once."""

from __future__ import annotations

import datetime
import json
import uuid
from typing import Any

import pytest
from celery import current_app
from celery.app.trace import build_tracer
from celery.worker.request import Request
from django.db import InternalError, OperationalError, ProgrammingError
from django.db.models import QuerySet
from django.utils import timezone
from kombu import Exchange, Queue

from jobs.contrib.messages import receiving
from jobs.lifecycle.worker_state import worker_state
from jobs.models import Job, Node
from jobs.models.values import as_uuid
from tests import tasks
from tests.helpers import parity
from tests.helpers.harness import Worker, deliver, effects, wait_ended, wait_state
from tests.helpers.servers import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def receive(key: str, *args: Any, task: Any = tasks.effect, **request: Any) -> str:
    """A pool process takes the message; what Celery does with it: IGNORED and SUCCESS acknowledge it."""
    request = {"id": key, "delivery_info": {"exchange": "", "routing_key": "celery"}, "is_eager": False, **request}
    outcome = build_tracer(task.name, task, app=current_app)(key, list(args), {}, request)
    return outcome.info.state if outcome.info else "SUCCESS"


@pytest.mark.parametrize("key", ["95bb79d0-78ea-4967-b031-a2fb8bae82ae", "no-uuid:7"])
def test_a_message_gets_its_row_and_its_copies_are_the_same_job(node, key):
    assert receive(key, "a") == "IGNORED"
    job = Job.objects.get()
    assert (job.pk, job.task, job.args, job.state, job.queue) == (
        as_uuid(key),
        "tests.tasks.effect",
        ["a"],
        "ready",
        "celery",
    )
    assert not effects(), "it runs as a job, and not here"
    assert receive(key, "a") == "IGNORED"
    assert deliver(type("Result", (), {"id": job.pk})) == ("SUCCESS", "a")
    assert receive(key, "a") == "IGNORED"
    assert Job.objects.get().state == "succeeded"
    assert effects() == {"a": 1}


@pytest.mark.parametrize("options", {**parity.OPTIONS, **parity.LINKS})
@pytest.mark.parametrize("task", ["add", "limited", "routed"])
def test_the_body_sees_the_request_of_the_message(stock, ours, node, options, task, monkeypatch):
    monkeypatch.setattr(receiving, "celery_app", lambda: ours)
    given = {**parity.OPTIONS, **parity.LINKS}[options]
    if task != "add" and "kwargs" in given:
        pytest.skip("takes no such argument")
    name = f"parity.{task}"

    def send(app):
        app.tasks[name].apply_async((1,), task_id=parity.ID, **parity.resolve(app, given))

    def send_by_name(app):
        send(stock)
        [message] = parity.take(app)
        made = Request(message, app=app, hostname="here", task=app.tasks[name])
        made.execute_using_pool(parity.Pool(app))

    expected, *_ = parity.seen_by_stock(stock, send)
    sees, *_ = parity.seen_by_ours(ours, send_by_name)
    for one in (expected, sees):
        # Where the message was sent from, and the address for its answer.
        for where in (one, one["properties"]):
            where.pop("origin", None)
            where.pop("reply_to", None)
    assert sees == expected


@pytest.mark.parametrize(
    ("sent_to", "queue"),
    [
        (("", "mail"), "mail"),
        (("letters", "letters.post"), "post"),
        (("topics", "topical.x.y"), "topical"),
        (("of another service", "mail"), "mail"),
        (("of another service", "whatever"), "consumed"),
    ],
)
def test_it_waits_in_the_queue_that_the_message_came_by(node, monkeypatch, sent_to, queue):
    """A message says only what it was sent to, and a job waits in a queue that workers claim from."""
    for each in (
        Queue("post", Exchange("letters"), routing_key="letters.post"),
        Queue("topical", Exchange("topics", type="topic"), routing_key="topical.#"),
    ):
        monkeypatch.setitem(current_app.amqp.queues, each.name, each)
    worker_state.queues = ["consumed", "mail"]
    exchange, routing_key = sent_to
    receive(
        str(uuid.uuid4()), "a", 2, task=tasks.retries, delivery_info={"exchange": exchange, "routing_key": routing_key}
    )
    job = Job.objects.get()
    assert job.queue == queue
    Job.objects.update(args=["a", 1])
    assert deliver(type("Result", (), {"id": job.pk}))[0] == "RETRY"
    assert Job.objects.get().queue == queue, "also when it is retried"


def test_what_json_cannot_keep_runs_as_a_stock_task(node, caplog):
    assert receive(str(uuid.uuid4()), "a", {1, 2}, task=tasks.noop) == "SUCCESS"
    assert not Job.objects.exists()
    [told] = [record for record in caplog.records if getattr(record, "action", "") == "foreign"]
    assert (told.levelname, told.task) == ("WARNING", "tests.tasks.noop")


@pytest.mark.parametrize("refused", [InternalError("a read-only transaction"), ProgrammingError("no such table")])
def test_what_the_database_refuses_goes_back_to_the_broker(node, monkeypatch, refused):
    """A failover has begun, or the tables are not migrated. Acknowledged it would be lost."""

    def receive_nothing(*args):
        raise refused

    monkeypatch.setattr("jobs.contrib.messages.receiving.insert", receive_nothing)
    monkeypatch.setattr("jobs.contrib.messages.receiving.RECONNECT", (0.0, 0.0))
    assert receive(str(uuid.uuid4()), "a") == "REJECTED"
    assert not effects()


def test_what_json_cannot_keep_does_not_run_if_the_task_has_keys(node):
    """There would be neither a marker nor a lock, and it would do what they are to prevent."""
    assert receive(str(uuid.uuid4()), {1, 2}, task=tasks.welcomes) == "FAILURE"
    assert not Job.objects.exists()
    assert not effects()


def test_an_expired_message_is_an_expired_job(node):
    key = str(uuid.uuid4())
    receive(key, "a", expires=(timezone.now() - datetime.timedelta(seconds=5)).isoformat())
    assert deliver(type("Result", (), {"id": key}))[0] == "UNCLAIMED"


def test_a_time_without_a_zone_is_read_as_celery_reads_it(node, settings):
    settings.TIME_ZONE = "Europe/Berlin"
    receive(str(uuid.uuid4()), "a", expires="2099-07-01T12:00:00")
    assert Job.objects.get().expires_at == datetime.datetime(2099, 7, 1, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize("key", ["95bb79d078ea4967b031a2fb8bae82ae", "no-uuid:7"])
def test_its_result_has_the_id_that_its_sender_asks_for(node, memory, key):
    receive(key, 1, 2, task=tasks.add)
    assert deliver(type("Result", (), {"id": Job.objects.get().pk})) == ("SUCCESS", 3)
    assert current_app.AsyncResult(key).result == 3


def test_without_a_database_the_message_goes_back_to_the_broker(node, monkeypatch):
    """Nobody else knows of the job."""
    tried = []

    def away(*args, **kwargs):
        tried.append(1)
        raise OperationalError("away")

    monkeypatch.setattr("jobs.contrib.messages.receiving.RECONNECT", [0.0, 0.0, 0.0])
    monkeypatch.setattr(QuerySet, "bulk_create", away)
    key = str(uuid.uuid4())
    assert receive(key, "a") == "REJECTED"
    assert len(tried) == 3
    monkeypatch.undo()
    assert receive(key, "a") == "IGNORED"
    assert Job.objects.filter(pk=key).exists()


def test_rows_of_another_service_are_within_what_a_column_holds(node):
    receive("x" * 500, "a", delivery_info={"exchange": "", "routing_key": "celery", "priority": 10**6}, retries=10**6)
    job = Job.objects.get()
    assert (job.priority, job.retries) == (2**15 - 1, 2**15 - 1)


# Real workers


@pytest.mark.core
def test_a_call_by_name_becomes_a_job():
    with Worker(concurrency=1):
        result = current_app.send_task("tests.tasks.effect", ("a",), countdown=0.2)
        wait_for(lambda: Job.objects.filter(pk=result.id), 10, "adopted")
        [job] = wait_ended(result.id)
    assert (job.state, job.lease) == ("succeeded", 1)
    assert effects() == {"a": 1}


@pytest.mark.slow
def test_the_lines_about_it_carry_job_task_and_node(tmp_path):
    log = tmp_path / "log"
    with Worker(concurrency=1, JOBS_TEST_LOG=str(log)):
        key = current_app.send_task("tests.tasks.noop").id
        wait_for(lambda: Job.objects.filter(pk=key).exists(), 20, "it has its row")
        wait_ended(key, timeout=60)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    told = [line for line in lines if line["logger"] == "jobs" and (line.get("job") == key or key in line["message"])]
    assert told
    for line in told:
        assert (line["job"], line["task"]) == (key, "tests.tasks.noop"), line
        assert Node.objects.filter(pk=line["node"]).exists(), line


@pytest.mark.slow
@pytest.mark.core
def test_the_same_message_many_times_at_once_runs_once():
    keys = [str(uuid.uuid4()) for _ in range(10)]
    for _ in range(5):
        for number, key in enumerate(keys):
            current_app.send_task("tests.tasks.effect", (f"k{number}",), task_id=key)
    with Worker(concurrency=4) as first, Worker(concurrency=4) as second:
        wait_for(lambda: Job.objects.count() == 10, 20, "adopted")
        wait_ended(*keys)
        wait_for(lambda: (first.text() + second.text()).count(" received") >= 50, 20, "all copies were seen")
    assert effects() == {f"k{number}": 1 for number in range(10)}
    assert set(Job.objects.values_list("retries", "crashes", "node_losses")) == {(0, 0, 0)}


@pytest.mark.slow
@pytest.mark.core
@pytest.mark.parametrize("point", ["before_receive", "after_receive"])
def test_a_message_whose_process_dies_runs_in_the_end(point):
    with Worker(concurrency=1, sync=f"{point}=kill"):
        result = current_app.send_task("tests.tasks.effect", ("a",))
        wait_for(lambda: Job.objects.filter(pk=result.id, state="succeeded").exists(), 30, "it ran")
    assert effects() == {"a": 1}


@pytest.mark.slow
@pytest.mark.core
def test_a_task_that_no_worker_knows_waits_for_one_that_does():
    """A rolling deploy: the old worker meets the new task first."""
    with Worker(concurrency=1, JOBS_TEST_FORGET="tests.tasks.effect"):
        unknown, known = tasks.effect.delay("unknown"), tasks.based.delay("known")
        job = wait_state(unknown.id, "scheduled")
        assert (job.error["type"], job.retries, job.crashes) == ("NotRegistered", 0, 0)
        assert "tests.tasks.effect" in job.error["message"]
        wait_ended(known.id)
    with Worker(concurrency=1):
        [job] = wait_ended(unknown.id)
    assert job.state == "succeeded"
    assert effects() == {"known": 1, "unknown": 1}
