"""Time limits strike in the body they are meant for, and nowhere else."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import celery
import pytest
from celery import shared_task
from celery.exceptions import SoftTimeLimitExceeded

from tests import tasks
from tests.faults.worker import Worker
from tests.helpers import misbehaving
from tests.helpers.gates import once_only
from tests.helpers.harness import effects, in_body, wait_ended
from tests.helpers.servers import wait_for
from tests.models import Effect

pytestmark = pytest.mark.django_db(transaction=True)


def ends(worker: Worker, children: list[int]) -> None:
    """The processes that were there are there, and run jobs."""
    wait_ended(tasks.effect.delay("after").id)
    assert [child.pid for child in worker.children] == children
    assert effects()["after"] == 1


@pytest.mark.slow
def test_a_soft_limit_ends_the_body_and_not_its_process():
    with Worker(concurrency=1) as worker:
        children = [child.pid for child in worker.children]
        [job] = wait_ended(misbehaving.sleeps_softly.delay("late").id)
        assert (job.state, job.error["type"], job.lease, job.crashes) == ("failed", "SoftTimeLimitExceeded", 1, 0)
        ends(worker, children)
    assert effects() == {"after": 1}


@pytest.mark.slow
@pytest.mark.parametrize("task", [misbehaving.sleeps_softly, misbehaving.sleeps_hard], ids=["soft", "hard"])
def test_a_limit_strikes_in_time_although_the_body_has_the_only_write_lock(task):
    """On SQLite, where its node cannot write as long as the body runs."""
    with Worker(concurrency=1):
        [job] = wait_ended(task.delay("late").id, timeout=5)
    assert job.error["type"] in ("SoftTimeLimitExceeded", "TimeLimitExceeded")


def test_a_limit_of_the_call_wins_over_that_of_the_task(tmp_path):
    started, limiter = tmp_path / "started", tmp_path / "limiter"
    with Worker(concurrency=1) as worker:
        children = [child.pid for child in worker.children]
        result = tasks.waits.apply_async(("late", str(started), str(limiter)), soft_time_limit=0.5, time_limit=20)
        [job] = wait_ended(result.id)
        assert (job.state, job.error["type"]) == ("failed", "SoftTimeLimitExceeded")
        ends(worker, children)


@pytest.mark.slow
def test_a_hard_limit_fails_the_job_and_takes_none_along():
    with Worker(concurrency=1) as worker:
        results = [misbehaving.sleeps_hard.delay("late"), *tasks.effect.delay_many([(f"k{n}",) for n in range(20)])]
        jobs = wait_ended(*[result.id for result in results])
        assert (jobs[0].state, jobs[0].error["type"], jobs[0].crashes) == ("failed", "TimeLimitExceeded", 0)
        assert {(job.state, job.crashes, job.node_losses) for job in jobs[1:]} == {("succeeded", 0, 0)}
        assert worker.process.poll() is None
    assert "late" not in effects()


@pytest.mark.slow
@pytest.mark.parametrize("point", ["after_claim", "before_commit", "after_completion", "after_commit"])
def test_a_soft_limit_does_not_strike_beside_the_body(point):
    """The process stands beside the body for longer than the limit, and is not struck there."""
    with Worker(concurrency=1, sync=f"{point}=pause") as worker:
        result = tasks.effect.apply_async(("a",), soft_time_limit=0.5, time_limit=60)
        process = worker.reached(point)
        time.sleep(1.5)  # three times the limit
        assert process.is_alive
        worker.go(point)
        [job] = wait_ended(result.id)
        # What comes before the body uses up its time.
        assert job.state in (("failed", "succeeded") if point == "after_claim" else ("succeeded",))
        ends(worker, [process.pid])
    assert (job.lease, job.crashes, job.node_losses) == (1, 0, 0)


def test_an_idle_process_survives_the_signal_of_a_soft_limit():
    with Worker(concurrency=2) as worker:
        wait_ended(tasks.effect.delay("before").id)
        children = [child.pid for child in worker.children]
        for pid in children * 3:
            os.kill(pid, signal.SIGUSR1)
        ends(worker, children)


def test_a_body_without_a_limit_survives_the_signal(tmp_path):
    started, limiter = tmp_path / "started", tmp_path / "limiter"
    with Worker(concurrency=1) as worker:
        result = tasks.waits.delay("a", str(started), str(limiter))
        os.kill(in_body(result.id, started), signal.SIGUSR1)
        Path(limiter).touch()
        [job] = wait_ended(result.id)
        assert (job.state, job.lease) == ("succeeded", 1)
        assert worker.process.poll() is None


@shared_task(base=celery.Task)
def stock_sleeps(key):
    try:
        time.sleep(60)
    except SoftTimeLimitExceeded:
        Effect.objects.create(key=key)


@pytest.mark.slow
def test_a_stock_task_has_its_own_soft_limit():
    """It is Celery's, which knows of requests only."""
    with Worker(concurrency=1) as worker:
        children = [child.pid for child in worker.children]
        stock_sleeps.apply_async(("late",), soft_time_limit=1)
        wait_for(lambda: effects()["late"], 20, "it met its limit")
        ends(worker, children)


@shared_task(soft_time_limit=1, autoretry_for=(SoftTimeLimitExceeded,), default_retry_delay=0)
def late_once(key, late):
    if once_only(late):
        time.sleep(60)
    Effect.objects.create(key=key, pid=os.getpid())


@pytest.mark.slow
def test_a_retry_begins_its_time_anew(tmp_path):
    with Worker(concurrency=1):
        [job] = wait_ended(late_once.delay("a", str(tmp_path / "late")).id)
    assert (job.state, job.retries) == ("succeeded", 1)
    assert [error["type"] for error in job.errors] == ["SoftTimeLimitExceeded"]
    assert effects() == {"a": 1}
