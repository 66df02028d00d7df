"""What ``celery inspect`` and ``celery control`` are told of jobs, which are no messages."""

from __future__ import annotations

import time

import pytest
from celery import current_app

from jobs.models import Cancellation, Job
from jobs.models.values import as_uuid
from tests import tasks
from tests.faults.worker import Worker
from tests.helpers.harness import effects, in_body, wait_ended
from tests.helpers.monitor import inspect, tell
from tests.helpers.servers import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=["jobs", pytest.param("redis", marks=pytest.mark.servers)])
def broker(request, use_broker):
    use_broker(request.getfixturevalue("redis_server").url if request.param == "redis" else "jobs://")
    return request.param


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


@pytest.mark.parametrize("key", ["95bb79d078ea4967b031a2fb8bae82ae", "order:7"])
def test_a_job_of_another_service_is_known_by_the_id_that_it_was_sent_with(body, key):
    with Worker(concurrency=1) as worker:
        arguments = ("held", str(body.started), str(body.gate))
        body.job = current_app.send_task("tests.tasks.waits", arguments, task_id=key)
        in_body(as_uuid(key), body.started)
        assert inspect(worker, "query_task", key)[key][0] == "active"
        tell(worker, "revoke", key, terminate=True, signal="SIGKILL")
        [found] = wait_ended(as_uuid(key))
        assert (found.state, found.error["type"]) == ("cancelled", "Revoked")


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


@pytest.mark.slow
def test_a_revoked_job_is_cancelled(tmp_path):
    started, gate = tmp_path / "started", tmp_path / "gate"
    with Worker(concurrency=1) as worker:
        blocker = tasks.waits.delay("blocker", str(started), str(gate))
        wait_for(started.exists, 20, "the only child is busy")
        victim = tasks.effect.delay("victim")
        current_app.control.revoke(victim.id)
        wait_for(lambda: "revoked" in worker.text(), 20, "the revoke arrived")
        gate.touch()
        wait_ended(blocker.id)
        [job] = wait_ended(victim.id)
    assert (job.state, job.error["type"]) == ("cancelled", "Revoked")
