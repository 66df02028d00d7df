"""What ``celery inspect``, ``celery control`` and ``celery events`` are told of jobs, which are no messages."""

from __future__ import annotations

import time

import pytest
from celery import current_app

from jobs.models import Cancellation, Job, Node
from tests import tasks
from tests.faults.worker import Worker
from tests.helpers.harness import effects, in_body, wait_ended, wait_state
from tests.helpers.monitor import Receiver, inspect, name_of
from tests.helpers.servers import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=["jobs", pytest.param("redis", marks=pytest.mark.servers)])
def broker(request, use_broker):
    use_broker(request.getfixturevalue("redis_server").url if request.param == "redis" else "jobs://")
    return request.param


def tell(worker: Worker, command: str, *arguments: object, **options: object) -> None:
    name = name_of(worker)
    options |= {"destination": [name], "reply": True, "timeout": 10, "limit": 1}
    [answer] = getattr(current_app.control, command)(*arguments, **options)
    assert "ok" in answer[name], answer


@pytest.fixture
def body(tmp_path):
    """A body that runs until its gate is there."""

    class Body:
        started, gate = tmp_path / "started", tmp_path / "gate"

        def begin(self, **options):
            arguments = ("held", str(self.started), str(self.gate))
            self.job = tasks.waits.apply_async(arguments, **options)
            self.pid = in_body(self.job.id, self.started)
            return self.job

        def end(self):
            self.gate.touch()
            return wait_ended(self.job.id)[0]

    return Body()


# What is asked


def test_a_running_job_is_active(broker, body):
    with Worker(concurrency=1) as worker:
        job = body.begin()
        [found] = inspect(worker, "active")
        assert (found["id"], found["name"], found["worker_pid"]) == (job.id, "tests.tasks.waits", body.pid)
        assert (found["args"], found["kwargs"]) == (["held", str(body.started), str(body.gate)], {})
        assert found["delivery_info"]["routing_key"] == Job.objects.get(pk=job.id).queue
        assert abs(time.time() - found["time_start"]) < 60
        waiting = tasks.effect.delay("waits")
        later = tasks.effect.apply_async(("later",), countdown=60)
        # They wait in the database, and nobody holds them.
        assert inspect(worker, "reserved") == inspect(worker, "scheduled") == []
        found = inspect(worker, "query_task", job.id, waiting.id, later.id)
        assert {key: state for key, (state, _) in found.items()} == {job.id: "active"}
        body.end()
        wait_for(lambda: inspect(worker, "active") == [], 10, "it is active no more")


def test_a_stock_task_is_found_beside_jobs(broker, body, tmp_path):
    with Worker(concurrency=2) as worker:
        body.begin()
        stock = tasks.stock_waits.delay("stock", str(tmp_path / "stock"), str(body.gate))
        wait_for((tmp_path / "stock").exists, 20, "the stock task runs")
        assert {found["id"] for found in inspect(worker, "active")} == {body.job.id, stock.id}
        body.end()


# Revoking


def test_a_revoked_job_that_waits_never_runs(body):
    with Worker(concurrency=1) as worker:
        body.begin()
        waits, later = tasks.effect.delay("waits"), tasks.effect.apply_async(("later",), countdown=60)
        tell(worker, "revoke", [waits.id, later.id])
        jobs = wait_ended(waits.id, later.id)
        assert {(job.state, job.error["type"]) for job in jobs} == {("cancelled", "Revoked")}
        assert body.end().state == "succeeded"
    assert effects() == {"held": 1}


def test_a_revoked_job_that_runs_is_asked_to_end(body):
    """Its process lives. A body without checkpoints learns of it at its end, and its completion is none."""
    with Worker(concurrency=1) as worker:
        job = body.begin()
        tell(worker, "revoke", job.id)
        wait_for(lambda: Cancellation.objects.filter(pk=job.id).exists(), 10, "it is asked to end")
        found = body.end()
        assert (found.state, found.error["type"], found.crashes) == ("cancelled", "Revoked", 0)
        wait_ended(tasks.effect.delay("after").id)
        assert worker.children[0].pid == body.pid


@pytest.mark.slow
@pytest.mark.parametrize("number", ["SIGTERM", "SIGKILL"])
def test_a_terminated_job_ends_at_once(body, number):
    with Worker(concurrency=1) as worker:
        job = body.begin()
        tell(worker, "revoke", job.id, terminate=True, signal=number)
        [found] = wait_ended(job.id)
        assert (found.state, found.error["type"]) == ("cancelled", "Revoked")
        assert (found.lease, found.crashes, found.node_losses) == (1, 0, 0)
        wait_ended(tasks.effect.delay("after").id)
        assert worker.children[0].pid != body.pid
    assert effects() == {"after": 1}


def test_jobs_are_revoked_by_their_stamps(body):
    with Worker(concurrency=1) as worker:
        body.begin()
        stamped = tasks.effect.s("stamped").stamp(tenant="a").apply_async()
        other = tasks.effect.s("other").stamp(tenant="b").apply_async()
        plain = tasks.effect.delay("plain")
        tell(worker, "revoke_by_stamped_headers", {"tenant": ["a"]})
        [job] = wait_ended(stamped.id)
        assert (job.state, job.error["type"]) == ("cancelled", "Revoked")
        body.end()
        wait_ended(other.id, plain.id)
    assert effects() == {"held": 1, "other": 1, "plain": 1}


def test_a_job_is_terminated_by_its_stamps(body):
    with Worker(concurrency=1) as worker:
        job = body.begin(headers={"tenant": "a"}, stamped_headers=["tenant"], tenant="a")
        tell(worker, "revoke_by_stamped_headers", {"tenant": ["a"]}, terminate=True, signal="SIGKILL")
        [found] = wait_ended(job.id)
        assert (found.state, found.error["type"], found.crashes) == ("cancelled", "Revoked", 0)


# Queues


def test_a_worker_can_be_told_to_consume_other_queues():
    with Worker(concurrency=1) as worker:
        queue = Job.objects.get(pk=wait_ended(tasks.effect.delay("before").id)[0].pk).queue
        elsewhere = tasks.effect.apply_async(("elsewhere",), queue="another")
        tell(worker, "add_consumer", "another")
        wait_ended(elsewhere.id)
        tell(worker, "cancel_consumer", queue)
        wait_for(lambda: Node.objects.get(pk=worker.node.pk).queues == ["another"], 10, "the node says so")
        waits = tasks.effect.delay("waits")
        wait_ended(tasks.effect.apply_async(("elsewhere again",), queue="another").id)
        assert Job.objects.get(pk=waits.id).state == "ready"
        tell(worker, "add_consumer", queue)
        wait_ended(waits.id)


# Events


@pytest.mark.slow
def test_events_of_jobs_reach_a_monitor(broker):
    with Receiver() as monitor, Worker("-E", concurrency=1):
        done = tasks.effect.delay("done")
        failed = tasks.raises.delay("no")
        retried = tasks.autoretries.delay("again")
        wait_ended(done.id, failed.id, retried.id)
        stock = tasks.stock.delay("stock")
        wait_for(lambda: "task-succeeded" in monitor.kinds(stock.id), 20, "those of a stock task")
        wait_for(lambda: monitor.kinds(retried.id).count("task-received") == 3, 20, "those of the last attempt")
        wait_for(lambda: "task-failed" in monitor.kinds(retried.id), 20, "its end")
    assert monitor.kinds(done.id) == ["task-received", "task-started", "task-succeeded"]
    assert monitor.kinds(failed.id) == ["task-received", "task-started", "task-failed"]
    assert monitor.kinds(retried.id).count("task-retried") == 2
    received, started, succeeded = monitor.heard[done.id]
    assert (received["name"], received["args"], received["retries"]) == ("tests.tasks.effect", "('done',)", 0)
    assert succeeded["runtime"] > 0
    assert "'done'" in succeeded["result"]
    assert started["pid"]
    assert "ValueError" in monitor.heard[failed.id][-1]["exception"]


@pytest.mark.slow
def test_without_a_wish_for_events_there_are_none():
    with Receiver() as monitor, Worker(concurrency=1):
        done = tasks.effect.delay("done")
        wait_ended(done.id)
        wait_state(done.id, "succeeded")
    assert not monitor.heard[done.id]
