"""Durable tasks in real workers that die, stand still and are deployed anew: each effect once, and nothing is lost."""

from __future__ import annotations

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
from jobs.testing import NotIdempotent, assert_idempotent
from tests.contrib.durable.asynchronous import awaits
from tests.contrib.durable.bodies import acts_between_steps, deployed, invites, onboard_fast, rests, ten_steps, waits
from tests.helpers.harness import ROOT, Worker, effects, environment, wait_ended, wait_reached
from tests.helpers.servers import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(180)]

BODIES = ("-I", "tests.contrib.durable.bodies,tests.contrib.durable.asynchronous")


def wait_for_signal(key: str, **more) -> None:
    wait_for(lambda: Job.objects.filter(waits_for=f"signal:{key}", **more).exists(), 30, f"a job waits for {key}")


@pytest.mark.slow
@pytest.mark.database
@pytest.mark.parametrize("at", ["before_step", "after_step", "before_suspend", "after_suspend"])
@pytest.mark.parametrize("action", ["kill", "stop"])
@pytest.mark.parametrize("task", [onboard_fast, awaits], ids=lambda task: task.name)
def test_a_process_that_dies_or_stands_still_at_a_step(task, at, action):
    if action == "stop" and connection.vendor == "sqlite" and at.startswith("before"):
        pytest.skip("who stands still in a transaction on SQLite has the file's lock")
    with Worker(*BODIES, concurrency=1, sync=f"{at}={action}") as first:
        result = task.delay("a")
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
@pytest.mark.database
@pytest.mark.parametrize(
    ("task", "at"),
    [
        # The step that takes the signal, the one that calls the children, the one with their results, the last one.
        *((onboard_fast, f"before_step@{number}") for number in range(2, 6)),
        (onboard_fast, "after_step@3"),
        # The wait for the signal, and the one for the children.
        *((onboard_fast, at) for at in ("before_suspend@2", "before_suspend@3", "after_suspend@3")),
        # The child's own completion, before it lets its parent go on.
        *((onboard_fast, at) for at in ("after_completion@3", "after_commit@1")),
        # The awaited forms: the step that takes the signal, and the wait for the children.
        *((awaits, at) for at in ("before_step@3", "before_suspend@3")),
    ],
    ids=lambda each: getattr(each, "name", each),
)
def test_a_process_that_dies_later_on(task, at):
    with Worker(*BODIES, concurrency=1, sync=f"{at}=kill") as worker:
        result = task.delay("a")
        wait_for_signal("approved:a")
        jobs.signal("approved:a", 7)
        [job] = wait_ended(result.id, timeout=60)
        assert (worker.directory / f"{at.partition('@')[0]}.reached").exists()
    assert job.state == "succeeded", job.error
    assert effects() == dict.fromkeys(("a:reserve", "a:ann", "a:bob", "a:charge"), 1)


@pytest.mark.slow
@pytest.mark.database
@pytest.mark.skipif(connection.vendor == "sqlite", reason="who stands still in a transaction has the file's lock")
@pytest.mark.parametrize(
    ("task", "at"),
    [
        # The wait itself, the step that takes its signal, and the one that calls the children.
        *((onboard_fast, at) for at in ("before_suspend@2", "before_step@2", "before_step@3")),
        (awaits, "before_step@3"),
    ],
    ids=lambda each: getattr(each, "name", each),
)
def test_a_process_that_stands_still_where_its_signal_comes(task, at):
    """The signal is there for the run that follows, and whoever stood still takes nothing of it."""
    with Worker(*BODIES, concurrency=1, sync=f"{at}=stop") as first:
        result = task.delay("a")
        if not at.startswith("before_suspend"):
            wait_for_signal("approved:a")
            jobs.signal("approved:a", 7)
        wait_reached(first.directory, at.partition("@")[0])
        with Worker(*BODIES, concurrency=1):
            first.signal(signal.SIGSTOP)
            if at.startswith("before_suspend"):
                jobs.signal("approved:a", 7)
            [job] = wait_ended(result.id, timeout=60)
            first.signal(signal.SIGCONT)
            time.sleep(0.5)
    job.refresh_from_db()
    assert (job.state, job.result) == ("succeeded", [{"key": "a:reserve"}, 7, ["a:ann", "a:bob"]])
    assert effects() == dict.fromkeys(("a:reserve", "a:ann", "a:bob", "a:charge"), 1)
    assert [each.taken_by for each in Signal.objects.all()] == [job.pk]


@pytest.mark.slow
@pytest.mark.database
def test_old_and_new_code_side_by_side():
    """A rolling deploy: who has gone past the change stays on the old way, and who comes after it takes the new one."""

    def go_on(wait: str, names: str) -> None:
        for name in names:
            jobs.signal(f"{wait}:{name}")

    with Worker(*BODIES, concurrency=1) as old:
        results = [deployed.delay(name) for name in "abc"]
        for name in "abc":
            wait_for_signal(f"first:{name}")
        go_on("first", "a")
        wait_for_signal("second:a")
        with Worker(*BODIES, concurrency=1, JOBS_TEST_NEW_CODE="1"):
            # By whoever comes first.
            go_on("first", "b")
            wait_for_signal("second:b")
            old.stop()
            go_on("first", "c")
            wait_for_signal("second:c")
            go_on("second", "abc")
            done = wait_ended(*[each.id for each in results], timeout=60)
    assert {job.state for job in done} == {"succeeded"}, [job.error for job in done]
    found = effects()
    assert found.pop("b:new", 1) == 1
    assert found == {**{f"{name}:{key}": 1 for name in "abc" for key in ("reserve", "charge", "end")}, "c:new": 1}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("task", [rests, invites], ids=lambda task: task.name)
def test_the_crash_kit_knows_steps(task):
    assert_idempotent(task, "a")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_crash_kit_says_what_to_do_with_what_is_done_between_steps():
    with pytest.raises(NotIdempotent, match="put it into a step"):
        assert_idempotent(acts_between_steps, "a")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_crash_kit_knows_waits_whose_signal_is_there():
    jobs.signal("k", 7)
    assert_idempotent(waits, "k")
