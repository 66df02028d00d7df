"""Durable tasks in real workers that die, stand still and are deployed anew: each effect once, and nothing is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from django.db import connection

import jobs
from jobs.contrib.durable.models import Signal, Step
from jobs.models import Job
from jobs.testing import assert_idempotent
from tests.contrib.durable.bodies import onboard_fast, rests, ten_steps, waits
from tests.helpers.harness import ROOT, Worker, effects, environment, wait_ended, wait_reached
from tests.helpers.servers import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(180)]

BODIES = ("-I", "tests.contrib.durable.bodies")


def wait_for_signal(key: str, **more) -> None:
    wait_for(lambda: Job.objects.filter(waits_for=f"signal:{key}", **more).exists(), 30, f"a job waits for {key}")


@pytest.mark.slow
@pytest.mark.database
@pytest.mark.parametrize("at", ["before_step", "after_step", "before_suspend", "after_suspend"])
@pytest.mark.parametrize("action", ["kill", "stop"])
def test_a_process_that_dies_or_stands_still_at_a_step(at, action):
    if action == "stop" and connection.vendor == "sqlite" and at.startswith("before"):
        pytest.skip("who stands still in a transaction on SQLite has the file's lock")
    with Worker(*BODIES, concurrency=1, sync=f"{at}={action}") as first:
        result = onboard_fast.delay("a")
        wait_reached(first.directory, at)
        with Worker(*BODIES, concurrency=1):
            first.signal(signal.SIGKILL if action == "kill" else signal.SIGSTOP)
            wait_for_signal("approved:a")
            jobs.signal("approved:a", 7)
            wait_for(lambda: Job.objects.filter(pk=result.id, state="succeeded").exists(), 60, "it goes on")
            first.signal(signal.SIGCONT)
            time.sleep(0.5)
    assert effects() == dict.fromkeys(("a:reserve", "a:ann", "a:bob", "a:charge"), 1)
    assert Job.objects.get(pk=result.id).result == [{"key": "a:reserve"}, 7, ["a:ann", "a:bob"]]


SENDER = """
import django; django.setup()
from django.db import transaction
import jobs
with transaction.atomic():
    jobs.signal("k", 5)
"""


@pytest.mark.database
def test_a_sender_that_dies_after_its_commit_has_sent(tmp_path):
    with Worker(*BODIES, concurrency=1):
        result = waits.delay("k")
        wait_for_signal("k")
        env = environment(JOBS_SYNC_POINTS="before_look=kill", JOBS_SYNC_DIR=str(tmp_path))
        done = subprocess.run([sys.executable, "-c", SENDER], env=env, cwd=ROOT, timeout=60, capture_output=True)
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        [job] = wait_ended(result.id)
    assert job.result == 5


@pytest.mark.database
def test_a_waiter_that_dies_before_it_looks_gets_its_signal(tmp_path):
    """The signal comes between what the waiter sees and what it commits."""
    with Worker(*BODIES, concurrency=1, sync="before_suspend=pause,after_suspend=kill") as worker:
        result = waits.delay("k")
        wait_reached(worker.directory, "before_suspend")
        if connection.vendor == "sqlite":
            pytest.skip("there is one writer: the signal comes before or after")
        jobs.signal("k", 5)
        assert Signal.objects.get().taken_by is None
        (worker.directory / "before_suspend.go").touch()
        wait_reached(worker.directory, "after_suspend")
        [job] = wait_ended(result.id)
    assert job.result == 5


@pytest.mark.slow
@pytest.mark.database
def test_ten_steps_with_a_kill_every_second():
    count, dice = 40, random.Random(11)
    results = ten_steps.delay_many([(f"{n}",) for n in range(count)])
    workers = [Worker(*BODIES, concurrency=2, wait=False) for _ in range(2)]
    try:
        until = time.monotonic() + 100
        while Job.objects.filter(state="succeeded").count() < count and time.monotonic() < until:
            time.sleep(1 if Step.objects.exists() else 0.1)
            if Step.objects.exists() and dice.random() < 0.5:
                place = dice.randrange(2)
                workers[place].kill()
                workers[place] = Worker(*BODIES, concurrency=2, wait=False)
        jobs_ = wait_ended(*[each.id for each in results], timeout=90)
    finally:
        for worker in workers:
            worker.kill()
    assert {job.state for job in jobs_} == {"succeeded"}
    assert effects() == {f"{n}:{step}": 1 for n in range(count) for step in range(10)}


@pytest.mark.slow
def test_old_and_new_code_side_by_side():
    """A rolling deploy: both know the task, and each step is done once, by whoever comes first."""
    with Worker(*BODIES, concurrency=1), Worker(*BODIES, concurrency=1, JOBS_TEST_NEW_CODE="1"):
        results = [onboard_fast.delay(f"{n}") for n in range(6)]
        for n in range(6):
            jobs.signal(f"approved:{n}", n)
        done = wait_ended(*[each.id for each in results], timeout=60)
    assert {job.state for job in done} == {"succeeded"}, [job.error for job in done]
    found = effects()
    new = {key for key in found if key.endswith(":new")}
    assert found == {
        **{f"{n}:{key}": 1 for n in range(6) for key in ("reserve", "ann", "bob", "charge")},
        **dict.fromkeys(new, 1),
    }
    assert os.environ.get("JOBS_TEST_NEW_CODE") is None


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_crash_kit_knows_steps():
    assert_idempotent(rests, "a")
