"""Every stop has an end: a soft one waits a while, a cold one ends the bodies, and what has not ended is given back."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from jobs.contrib.stopping import stopping
from jobs.contrib.stopping.stopping import EndMark
from jobs.lifecycle.worker_state import WorkerState
from jobs.models import Job
from tests import tasks
from tests.faults.worker import Worker
from tests.helpers.harness import effects, in_body, wait_ended, wait_state
from tests.helpers.workers import assert_nothing_counted

pytestmark = pytest.mark.django_db(transaction=True)

POOLS = [("redis", "prefork"), ("jobs", "prefork"), ("jobs", "threads"), ("jobs", "solo")]


@pytest.fixture
def worker_state(monkeypatch) -> WorkerState:
    worker_state = WorkerState()
    monkeypatch.setattr(stopping, "worker_state", worker_state)
    return worker_state


def test_all_processes_share_when_it_has_to_end(worker_state):
    mark = EndMark()
    assert mark.passed == 0.0
    if (child := os.fork()) == 0:
        try:
            mark.note()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert 0 < mark.passed < 5
    mark.wipe()
    assert mark.passed == 0.0


def test_the_first_word_of_an_end_counts(worker_state):
    mark = EndMark()
    worker_state.note_stop()
    time.sleep(0.05)
    mark.note()
    assert worker_state.stopping_for >= 0.05
    assert mark.passed < 0.05
    time.sleep(0.05)
    mark.note()
    assert mark.passed >= 0.05


def test_who_has_to_end_at_once_has_to_stop(worker_state):
    EndMark().note()
    assert worker_state.stopping_for is not None


@pytest.mark.slow
@pytest.mark.parametrize(("broker", "pool"), POOLS)
def test_a_soft_stop_waits_a_while_for_what_runs(on, broker, tmp_path, pool):
    on(broker)
    started, gate = tmp_path / "started", tmp_path / "gate"
    with Worker("-P", pool, concurrency=1, JOBS_TEST_CELERY=json.dumps({"worker_soft_shutdown_timeout": 20})) as worker:
        job = tasks.waits.delay("a", str(started), str(gate))
        in_body(job.id, started)
        worker.main.signal(signal.SIGQUIT)
        worker.said("Initiating Soft Shutdown")
        waits = tasks.effect.delay("waits")
        gate.touch()
        [done] = wait_ended(job.id)
        assert (done.state, done.lease) == ("succeeded", 1)
        worker.process.wait(15)
    assert Job.objects.get(pk=waits.id).state == "ready"
    assert effects() == {"a": 1}
    assert_nothing_counted()


@pytest.mark.slow
@pytest.mark.parametrize("stop", [0, 1])
def test_a_cold_stop_ends_what_runs_and_gives_it_back(tmp_path, stop):
    """At once, or after the time that a soft one waits; nobody has to be killed for it."""
    started, gate = tmp_path / "started", tmp_path / "gate"
    with Worker(concurrency=1, JOBS_TEST_CELERY=json.dumps({"worker_soft_shutdown_timeout": stop})) as worker:
        job = tasks.waits.delay("a", str(started), str(gate))
        in_body(job.id, started)
        worker.main.signal(signal.SIGQUIT)
        assert worker.process.wait(20) >= 0
        wait_state(job.id, "ready")
    assert_nothing_counted()
