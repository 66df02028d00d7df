"""Jobs whose task no worker knows wait at no cost, and go on when a worker knows it."""

from __future__ import annotations

import datetime
import uuid

import pytest
from celery import current_app
from django.db.models.functions import Now
from django.utils import timezone

from jobs.contrib.short_looks import clock as short_looks
from jobs.contrib.unknown_tasks import parking
from jobs.lifecycle import transitions
from jobs.lifecycle.claims import Claimer
from jobs.lifecycle.worker_state import worker_state
from jobs.maintenance import clock
from jobs.models import Job, Node
from jobs.worker.runner import Runner
from tests import tasks
from tests.helpers.plans import analyze, assert_indexed, make_history
from tests.helpers.rows import make, make_node
from tests.helpers.servers import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]

QUEUE = "celery"


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(parking, "_imported", {})
    parking._seldom.clear()


@pytest.fixture
def runner(node):
    worker_state.queues = [QUEUE]
    return Runner(current_app._get_current_object(), "here")


def ago(seconds: float) -> datetime.datetime:
    return timezone.now() - datetime.timedelta(seconds=seconds)


def claim(limit: int, node: uuid.UUID) -> list[Job]:
    return Claimer().claim("default", QUEUE, node, limit)


def keys(jobs) -> list[uuid.UUID]:
    return [job.pk for job in jobs]


def state(job: Job) -> tuple[str, int]:
    job = Job.objects.get(pk=job.pk)
    return job.state, job.lease


def call(task) -> Job:
    return Job.objects.get(pk=task.apply_async(queue=QUEUE).id)


def learn(runner: Runner, name: str) -> None:
    """The process knows that it takes no time."""
    runner._means[f"tests.tasks.{name}"] = 0.0001
    runner._next = 100


def test_jobs_of_a_task_that_nobody_knows_are_put_aside_once(runner, monkeypatch):
    """They would stand at the head of the queue, and each claim would step over them."""
    monkeypatch.setattr(parking, "MOST", 15)
    unknown = [make(task="of.a.later.release", age=100) for _ in range(40)]
    held = make(task="of.a.later.release", limit_key="k", held=True)
    known = call(tasks.noop)
    for _ in range(4):
        assert runner.run_batch()
    assert state(known)[0] == "succeeded"
    for job in unknown:
        job.refresh_from_db()
        assert (job.state, job.error["type"]) == ("scheduled", "NotRegistered")
        assert (job.retries, job.crashes, job.node_losses, job.snoozes) == (0, 0, 0, 0)
    assert sum(job.lease for job in unknown) == 3, "15 others with each that was claimed"
    assert state(held)[0] == "ready"
    # As if any pause were over.
    soon = timezone.now() + datetime.timedelta(hours=1)
    Job.objects.filter(state="scheduled", run_at__lt=soon).update(run_at=ago(1))
    for _ in range(3):
        clock.tick()
        assert not runner.run_batch(), "nobody touches them again"
    assert {state(job)[0] for job in unknown} == {"scheduled"}


def knows(*names: str) -> Node:
    """Another worker, which knows these tasks."""
    return make_node(queues=[QUEUE], tasks=list(names))


def test_a_worker_that_knows_their_task_lets_them_go(runner, settings):
    settings.JOBS = {**settings.JOBS, "BATCH": 10}
    Node.objects.filter(pk=worker_state.node).update(tasks=["tests.tasks.noop"])
    parked = [make(task="of.a.later.release", queue=queue, age=9) for queue in [QUEUE] * 150 + ["elsewhere"]]
    other = make(task="of.no.release", age=9)
    assert runner.run_batch()
    assert runner.run_batch()
    # It consumes the other queue no more.
    worker_state.queues = ["elsewhere"]
    assert runner.run_batch()
    worker_state.queues = [QUEUE]
    clock.tick()
    assert not Job.objects.filter(state="ready").exists()
    # A new worker.
    worker_state.node = knows("of.a.later.release").pk
    worker_state.is_quiet = True
    clock.tick()
    assert not Job.objects.filter(state="ready").exists(), "it claims nothing"
    worker_state.is_quiet = False
    parking._seldom.clear()
    clock.tick()
    assert set(keys(Job.objects.filter(state="ready"))) == set(keys(parked[:-1]))
    assert [job.pk for job in Job.objects.filter(state="scheduled").order_by("pk")] == [parked[-1].pk, other.pk]
    assert set(Job.objects.filter(state="ready").values_list("waits_for", flat=True)) == {None}


def test_jobs_that_another_worker_knows_are_left_to_it(runner, monkeypatch):
    """A rolling deploy: both are alive, and consume the queue."""
    new = knows("of.a.later.release")
    wanted = [make(task="of.a.later.release", age=100 - n) for n in range(30)]
    known = [call(tasks.noop) for _ in range(3)]
    learn(runner, "noop")
    while runner.run_batch():
        pass
    assert {state(job)[0] for job in known} == {"succeeded"}
    assert {state(job)[0] for job in wanted} == {"ready"}
    assert sum(job.lease for job in Job.objects.filter(task="of.a.later.release")) <= 30, "no more than one claim"
    assert set(keys(claim(200, new.pk))) == set(keys(wanted))
    # It dies with them, and nobody knows the task any more.
    Job.objects.filter(state="running").update(state="ready")
    Node.objects.filter(pk=new.pk).update(dead_at=Now())
    assert not runner.run_batch(), "not yet"
    runner._unknown.clear()
    while runner.run_batch():
        pass
    assert {state(job)[0] for job in wanted} == {"scheduled"}


@pytest.mark.parametrize("limit", ["of the queue", "of a task"])
def test_jobs_that_another_worker_knows_are_left_to_it_where_limits_are_in_force(runner, settings, limit):
    limited_claims = pytest.importorskip("jobs.contrib.limits.claims")
    knows("of.a.later.release")
    name = f"@{QUEUE}" if limit == "of the queue" else "tests.tasks.noop"
    pytest.importorskip("jobs.contrib.limits.models").Limit.objects.create(name=name, concurrency=5)
    limited_claims.publish()
    wanted, known = make(task="of.a.later.release", age=100), call(tasks.noop)
    while runner.run_batch():
        pass
    assert (state(wanted)[0], state(known)[0]) == ("ready", "succeeded")
    assert not runner.run_batch()


def test_one_of_djangos_tasks_waits_for_a_worker_that_can_import_it(runner, monkeypatch):
    """Which one can nobody knows before it tries: each worker tries it once, and says so."""
    pytest.importorskip("jobs.django_tasks.task_backend")
    monkeypatch.setattr(parking, "_imported", {})
    tried: list[str] = []

    def find(path, backend):
        tried.append(path)
        if path == "of.no.module":
            raise ImportError(path)
        return object()

    monkeypatch.setattr("jobs.django_tasks.task_backend.find", lambda path, backend: None)
    options = {"headers": {"django_task": "default"}}
    nowhere, there = (
        [make(task=task, options=options, age=9) for _ in range(3)] for task in ("of.no.module", "of.one")
    )
    Node.objects.filter(pk=worker_state.node).update(tasks=[])
    assert runner.run_batch()
    assert runner.run_batch()
    clock.tick()
    assert not runner.run_batch(), "nobody touches them again"
    assert {state(job)[0] for job in nowhere + there} == {"scheduled"}
    # Another worker, of another release.
    old, worker_state.node = worker_state.node, make_node(queues=[QUEUE]).pk
    monkeypatch.setattr(parking, "_imported", {})
    monkeypatch.setattr("jobs.django_tasks.task_backend.find", find)
    for _ in range(3):
        parking._seldom.clear()
        clock.tick()
    assert {state(job)[0] for job in nowhere} == {"scheduled"}
    assert {state(job)[0] for job in there} == {"ready"}
    assert sorted(tried) == ["of.no.module", "of.one"]
    assert Node.objects.get(pk=worker_state.node).tasks == ["of.one"]
    claimed = claim(1, old)[0]
    assert parking._is_known_elsewhere(claimed), "the one that cannot leaves them to it"


def test_an_unknown_task_in_the_middle_of_a_batch_stops_nobody(runner):
    jobs = [call(tasks.noop), make(task="of.a.later.release"), call(tasks.noop)]
    learn(runner, "noop")
    assert runner.run_batch()
    assert [state(job)[0] for job in jobs] == ["succeeded", "scheduled", "succeeded"]


def test_a_look_from_the_start_finds_what_waits_for_this_worker(node, monkeypatch):
    monkeypatch.setattr(short_looks, "SLOW_LOOK", -1.0)
    monkeypatch.setattr(short_looks, "LONGEST_LOOK", 0.2)
    clock.tick()
    Node.objects.filter(pk=worker_state.node).update(tasks=["of.a.later.release"])
    waits_for = parking.TASK + "of.a.later.release"
    parked = make("scheduled", task="of.a.later.release", waits_for=waits_for, run_at=transitions.PARKED)
    worker_state.queues = [QUEUE]
    wait_for(lambda: clock.tick() and state(parked)[0] == "ready", 10, "it is found")


def test_both_ways_use_an_index(db):
    make_history()
    parked = (
        Job(task=f"of.{n}", state="scheduled", run_at=transitions.PARKED, waits_for=f"{parking.TASK}of.{n}")
        for n in range(10_000)
    )
    Job.objects.bulk_create(parked)
    analyze("jobs_job")
    assert_indexed("postpone", lambda: parking.postpone(Job.objects.filter(state="running")[0], 1000))
    assert_indexed("let go", lambda: parking.let_go("default", ["of.1", "of.2"], [QUEUE], 10))
