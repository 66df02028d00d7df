"""Groups in real workers that die, stand still and fail: each effect once, and a crash counts for one alone."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from celery import shared_task
from django.db import connection

from jobs.conf import conf
from jobs.contrib.grouped import runner as grouped_runner
from jobs.models import Job
from jobs.worker import runner
from tests.faults.strike import Strike
from tests.helpers.harness import Worker, effects
from tests.helpers.servers import wait_for
from tests.models import Effect

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.database,
    pytest.mark.slow,
    pytest.mark.timeout(180),
]

#: What a worker is started with: it knows these bodies, and claims many at once.
BODIES = ("-I", __name__)
COUNT = 60

if "JOBS_TEST_LONG_GROUPS" in os.environ:
    # In a worker: else a busy machine claims and groups a few at a time.
    runner.BATCH_TIME = grouped_runner.GROUP_TIME = 100.0


def write(key):
    Effect.objects.create(key=key, pid=os.getpid())


@shared_task(grouped=True)
def effect(key):
    write(key)


@shared_task(grouped=True)
def dies_once(key, bad, mark):
    write(key)
    if key == bad and not os.path.exists(mark):
        Path(mark).write_text(key)
        os.kill(os.getpid(), signal.SIGKILL)


@shared_task(grouped=True, soft_time_limit=1)
def hangs(key, bad):
    write(key)
    if key == bad:
        while True:
            Effect.objects.first()


@shared_task(grouped=True)
def fails(key, bad):
    write(key)
    if key == bad:
        raise ValueError(key)


@pytest.fixture(autouse=True)
def _long_groups(monkeypatch):
    monkeypatch.setenv("JOBS_TEST_LONG_GROUPS", "1")


def keys():
    return [f"k{number}" for number in range(COUNT)]


def wait_done(count=COUNT, timeout=60.0):
    wait_for(lambda: Job.objects.filter(state__in=("succeeded", "failed")).count() == count, timeout, "all ended")


def assert_each_once(but=()):
    assert effects() == dict.fromkeys((key for key in keys() if key not in but), 1)
    assert {job.args[0] for job in Job.objects.exclude(state="succeeded")} == set(but)


@pytest.mark.parametrize("at", ["before_commit", "after_completion", "after_commit"])
def test_a_process_that_is_killed_around_the_commit_of_a_group(tmp_path, at):
    effect.delay_many([(key,) for key in keys()])
    # The first job of a task runs alone: it strikes in a claim of several, when all of its bodies have run.
    strike = Strike(tmp_path, "last", at, "kill")
    with Worker(*BODIES, concurrency=1, **strike.env):
        strike.wait()
        # What it committed is there, and of the others nothing.
        done = Job.objects.filter(state="succeeded", pk__in=[*strike.before, strike.job]).count()
        assert (done == 0) == (at != "after_commit")
        wait_done()
        assert_each_once()
        assert not Job.objects.filter(crashes__gt=0).exists()


@pytest.mark.parametrize("point", ["body", "named", "between"])
@pytest.mark.parametrize("place", ["middle", "last"])
def test_a_process_that_is_killed_in_a_group(tmp_path, point, place):
    """Rows before it, whose bodies have run, go back as those behind it do: nothing of them was committed."""
    effect.delay_many([(key,) for key in keys()])
    strike = Strike(tmp_path, place, point, "kill")
    with Worker(*BODIES, concurrency=1, **strike.env):
        strike.wait()
        wait_done()
    assert_each_once()
    # Beside the body nobody is to blame: it is a loss.
    crashed = {str(job.pk): job.crashes for job in Job.objects.filter(crashes__gt=0)}
    assert crashed == ({strike.job: 1} if point == "body" else {})
    assert Job.objects.filter(node_losses__gt=0).count() == (point != "body")


def test_a_crash_counts_for_the_body_that_ran(tmp_path):
    mark = tmp_path / "mark"
    dies_once.delay_many([(key, "k40", str(mark)) for key in keys()])
    with Worker(*BODIES, concurrency=1):
        wait_done()
    assert_each_once()
    assert {job.args[0]: job.crashes for job in Job.objects.filter(crashes__gt=0)} == {"k40": 1}
    assert not Job.objects.filter(node_losses__gt=0).exists()


@pytest.mark.parametrize("task", [fails, hangs])
def test_one_bad_body_among_many(task):
    """An exception, and a soft time limit: only that job fails."""
    task.delay_many([(key, "k30") for key in keys()])
    with Worker(*BODIES, concurrency=1) as worker:
        wait_done()
        assert "group that was rolled back" in worker.text()
    assert_each_once(but=["k30"])
    assert not Job.objects.filter(crashes__gt=0).exists()


@pytest.mark.parametrize("point", ["body", "before_commit"])
def test_a_worker_that_stands_still_in_a_group_beside_another(tmp_path, point):
    """It wakes up as a zombie: what it did rolls back as a whole, and the other one did it once."""
    if connection.vendor == "sqlite":
        pytest.skip("who stands still in a transaction on SQLite has the file's lock")
    effect.delay_many([(key,) for key in keys()])
    strike = Strike(tmp_path, "last", point, "stop")
    with Worker(*BODIES, concurrency=1, **strike.env) as first:
        strike.wait()
        first.signal(signal.SIGSTOP)
        with Worker(*BODIES, concurrency=1):
            wait_done(timeout=60 + 4 * conf().DEAD_AFTER)
            first.signal(signal.SIGCONT)
            wait_for(lambda: "ran in a group that was rolled back" in first.text(), 30, "the zombie found out")
    assert_each_once()
    assert not Job.objects.filter(crashes__gt=0).exists()
