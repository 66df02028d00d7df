"""A worker is told to stop: what runs is finished or given back, and what was only claimed is given back uncounted."""

from __future__ import annotations

import json
import signal
import time

import pytest
from celery import current_app

from jobs.models import Job, Node
from tests import tasks
from tests.faults.worker import Worker
from tests.helpers.harness import effects, in_body, wait_ended
from tests.helpers.servers import wait_for
from tests.helpers.workers import assert_nothing_counted

pytestmark = pytest.mark.django_db(transaction=True)

SOFT = json.dumps({"worker_soft_shutdown_timeout": 3})


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["redis", "jobs"])
@pytest.mark.parametrize("how", ["warm", "soft", "cold"])
def test_what_was_claimed_and_not_begun_is_given_back(on, broker, how):
    """In the middle of a stream of short jobs, of which each process has claimed several."""
    on(broker)
    results = tasks.lingers.delay_many([(f"k{n}", 0.005) for n in range(150)])
    env = {"JOBS_TEST_CELERY": SOFT} if how == "soft" else {}
    with Worker(**env) as first:
        wait_for(lambda: len(effects()) > 20, 20, "it is in the middle of it")
        first.main.signal(signal.SIGTERM if how == "warm" else signal.SIGQUIT)
        first.process.wait(20)
        # The supervisor ends after the main process, where it had to wait for it.
        wait_for(lambda: Node.objects.get(pk=first.node.pk).signed_off, 10, "it signed off")
        assert not Job.objects.filter(state="running").exists()
        assert Job.objects.filter(state="ready").exists(), "there is something left to do"
    assert_nothing_counted()
    with Worker():
        wait_ended(*[result.id for result in results])
    assert effects() == {f"k{n}": 1 for n in range(150)}
    assert_nothing_counted()


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["redis", "jobs"])
def test_a_warm_stop_waits_for_a_process_that_was_made_later(on, broker, tmp_path):
    """Guard: Linux ends a process when the thread ends that made it (``PR_SET_PDEATHSIG``), and that one ends first."""
    on(broker)
    env = {"JOBS_TEST_CELERY": json.dumps({"worker_max_tasks_per_child": 1})}
    gate, started = tmp_path / "gate", [tmp_path / "0", tmp_path / "1"]
    with Worker(**env) as worker:
        wait_ended(*[tasks.effect.delay(key).id for key in "xyz"])
        jobs = [tasks.waits.delay(path.name, str(path), str(gate)) for path in started]
        for job, path in zip(jobs, started, strict=True):
            in_body(job.id, path)
        worker.main.signal(signal.SIGTERM)
        worker.said("Warm shutdown")
        # The threads end within a second. If their processes went with them, the bodies are gone by now.
        time.sleep(2)
        gate.touch()
        assert [job.state for job in wait_ended(*[job.id for job in jobs])] == ["succeeded"] * 2
        worker.process.wait(20)
    assert not Job.objects.exclude(lease=1).exists()
    assert_nothing_counted()


@pytest.mark.slow
def test_a_worker_told_to_stop_by_remote_control_gives_back_the_rest():
    results = tasks.lingers.delay_many([(f"k{n}", 0.005) for n in range(300)])
    with Worker(wait=False) as worker:
        wait_for(lambda: len(effects()) > 20, 40, "it is in the middle of it")
        wait_for(lambda: " ready." in worker.text(), 20, "it hears")
        current_app.control.shutdown()
        assert worker.process.wait(20) == 0
    assert not Job.objects.filter(state="running").exists()
    assert_nothing_counted()
    with Worker():
        wait_ended(*[result.id for result in results])
    assert set(effects().values()) == {1}


@pytest.mark.slow
def test_a_stop_begins_no_other_job(tmp_path):
    """While the last body runs, new jobs come in."""
    started, gate = tmp_path / "started", tmp_path / "gate"
    with Worker(concurrency=2) as worker:
        job = tasks.waits.delay("a", str(started), str(gate))
        in_body(job.id, started)
        worker.process.terminate()
        wait_for(lambda: Node.objects.get(pk=worker.node.pk).stopping_at, 10, "it says that it stops")
        later = [tasks.effect.delay(f"k{n}") for n in range(20)]
        gate.touch()
        wait_ended(job.id)
        assert worker.process.wait(20) == 0
    assert set(Job.objects.filter(pk__in=[each.id for each in later]).values_list("state", "lease")) == {("ready", 0)}
