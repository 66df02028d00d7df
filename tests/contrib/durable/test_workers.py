"""Durable tasks in real workers: coroutines in each pool, limits, deadlines, and ends from outside."""

from __future__ import annotations

import pytest
from celery import current_app
from django.core.management import call_command
from django.db import connection, transaction
from django.db.models.functions import Now

import jobs
from jobs.contrib.durable.models import Signal, Step
from jobs.contrib.operations import by_hand
from jobs.models import Job
from tests.contrib.durable.asynchronous import (
    awaits,
    calls_out,
    goes_on_late,
    hangs_inside,
    hangs_outside,
    returns_late,
    stays,
    stays_too_long,
    two_steps,
)
from tests.contrib.durable.bodies import dozes, hangs, loses, many_children, naps_in_a_step, stays_in_a_step, waits
from tests.faults.clock import clock
from tests.helpers.harness import Worker, effects, wait_ended
from tests.helpers.servers import wait_for

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(180),
    pytest.mark.slow,
    pytest.mark.database,
]

BODIES, PLAIN = ("-I", "tests.contrib.durable.asynchronous"), ("-I", "tests.contrib.durable.bodies")
ALL = "reserve", "ann", "bob", "charge"


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_many_in_each_pool(pool):
    with Worker(*BODIES, "-P", pool, concurrency=1):
        results = [awaits.delay(f"{number}") for number in range(10)]
        for number in range(10):
            jobs.signal(f"approved:{number}", number)
        done = wait_ended(*[each.id for each in results], timeout=60)
    assert {job.state for job in done} == {"succeeded"}, [job.error for job in done]
    assert effects() == {f"{number}:{key}": 1 for number in range(10) for key in ALL}


@pytest.mark.timeout(400)
def test_ten_thousand_children():
    with Worker(*PLAIN, concurrency=2):
        [job] = wait_ended(many_children.delay(10_000).id, timeout=300)
    assert job.result == 10_000


@pytest.mark.skipif(connection.vendor != "postgresql", reason="a job's row names its session there")
def test_the_ledger_of_an_awaited_call_is_written_over_the_session_of_the_run(tmp_path):
    with Worker(*BODIES, concurrency=1, TEST_SESSIONS=str(tmp_path / "sessions")):
        [job] = wait_ended(calls_out.delay("a").id)
    assert job.state == "succeeded", job.error
    # Before the call, and with its answer.
    assert (tmp_path / "sessions").read_text().split() == ["True", "True"]


def test_a_soft_limit_strikes_in_a_coroutine_and_keeps_its_steps(tmp_path):
    with Worker(*BODIES, concurrency=1):
        [job] = wait_ended(stays.delay("a", str(tmp_path / "stays")).id)
    assert (job.state, job.error["type"], effects()) == ("failed", "SoftTimeLimitExceeded", {"a:one": 1})


def test_a_soft_limit_strikes_in_a_plain_step_and_keeps_those_before():
    with Worker(*PLAIN, concurrency=1):
        [job] = wait_ended(naps_in_a_step.delay("a").id)
    assert (job.state, job.error["type"], effects()) == ("failed", "SoftTimeLimitExceeded", {"a:one": 1})


def test_a_hard_limit_ends_a_step_and_a_retry_goes_on_there(tmp_path):
    path = tmp_path / "go"
    with Worker(*PLAIN, concurrency=1):
        result = hangs.delay("a", str(path))
        [job] = wait_ended(result.id)
        assert (job.state, job.error["type"], effects()) == ("failed", "TimeLimitExceeded", {"a:one": 1})
        path.touch()
        call_command("jobs", "retry", str(job.pk))
        wait_for(lambda: Job.objects.filter(pk=job.pk, state="succeeded").exists(), 30, "it goes on")
    assert effects() == {"a:one": 1, "a:two": 1}


@pytest.mark.skipif(connection.vendor != "postgresql", reason="the session ends itself there")
def test_a_step_whose_session_ends_is_done_by_the_next_run(tmp_path):
    with Worker(*PLAIN, concurrency=1):
        [job] = wait_ended(loses.delay("a", str(tmp_path / "lost")).id)
    assert (job.state, job.node_losses) == ("succeeded", 1)
    assert effects() == {"a:one": 1, "a:two": 1}


@pytest.mark.parametrize("task", [hangs_outside, hangs_inside], ids=lambda task: task.name)
def test_a_step_that_hangs_ends_at_the_hard_limit_and_others_go_on(task):
    with Worker(*BODIES, concurrency=1):
        result = task.delay("a")
        wait_for(lambda: "a:one" in effects(), 20, "it has begun")
        other = two_steps.delay("b")
        jobs_ended = wait_ended(result.id, other.id, timeout=60)
    assert {job.args[0]: job.state for job in jobs_ended} == {"a": "failed", "b": "succeeded"}
    assert {job.args[0]: (job.error or {}).get("type") for job in jobs_ended} == {"a": "TimeLimitExceeded", "b": None}
    assert effects() == {"a:one": 1, "b:one": 1, "b:two": 1}


@pytest.mark.parametrize("how", ["cancel", "kill"])
def test_what_was_done_is_taken_back(how, tmp_path):
    path = tmp_path / "stays"
    with Worker(*BODIES, concurrency=1):
        result = stays_too_long.apply_async(("a", str(path)))
        wait_for(path.exists, 20, "it stays")
        call_command("jobs", how, str(result.id))
        [job] = wait_ended(result.id)
        wait_for(lambda: "undo a:one" in effects(), 20, "it is taken back")
    assert job.state == "cancelled"
    assert effects() == {"a:one": 1, "undo a:one": 1}


def test_what_was_done_is_taken_back_of_one_that_is_killed_in_a_plain_step(tmp_path):
    path = tmp_path / "stays"
    with Worker(*PLAIN, concurrency=1) as worker:
        result = stays_in_a_step.delay("a", str(path))
        wait_for(path.exists, 20, "it stays")
        call_command("jobs", "kill", str(result.id))
        [job] = wait_ended(result.id)
        wait_for(lambda: "undo a:one" in effects(), 20, f"it is taken back: {worker.text()}")
    assert job.state == "cancelled"
    assert effects() == {"a:one": 1, "undo a:one": 1}


def test_who_wakes_in_a_paused_queue_goes_on_when_it_is_resumed():
    queue = current_app.conf.task_default_queue
    with Worker(*PLAIN, "-Q", f"{queue},mail", concurrency=1):
        result = dozes.delay("a")
        wait_for(lambda: Job.objects.filter(pk=result.id, waits_for__startswith="sleep:").exists(), 20, "it sleeps")
        call_command("jobs", "pause", queue)
        wait_for(lambda: Job.objects.filter(pk=result.id, run_at__lt=Now()).exists(), 20, "it is due")
        # Others of this worker run meanwhile, so it looks for jobs.
        wait_ended(dozes.apply_async(("b",), queue="mail").id)
        assert effects() == {"b:after": 1}
        call_command("jobs", "resume", queue)
        [job] = wait_ended(result.id)
    assert (job.state, effects()) == ("succeeded", {"a:after": 1, "b:after": 1})


@pytest.mark.skipif(connection.vendor == "sqlite", reason="its clock is the one of each process")
@pytest.mark.parametrize("hours", [1, -1])
def test_a_sleep_is_as_long_as_it_was_said_though_the_clocks_of_workers_are_wrong(hours):
    """One begins the sleep, and the other one goes on."""
    with Worker(*PLAIN, concurrency=1, **clock(hours)):
        result = dozes.delay("a")
        wait_for(lambda: Job.objects.filter(pk=result.id, waits_for__startswith="sleep:").exists(), 20, "it sleeps")
    # A warm stop may have let it go on.
    with Worker(*PLAIN, concurrency=1, **clock(-hours)):
        [job] = wait_ended(result.id)
    assert (job.state, effects()) == ("succeeded", {"a:after": 1})
    [row] = Step.objects.filter(job=job.pk, kind=Step.Kind.SLEEP)
    assert 0.5 <= (row.until - row.made_at).total_seconds() < 60
    assert row.until <= job.started_at


def test_two_workers_that_race_for_one_signal_take_it_once():
    """Of each key two jobs wait. All are woken by a first signal, and half of them wait on."""
    keys = [f"race:{number}" for number in range(20)]
    with Worker(*PLAIN, concurrency=2), Worker(*PLAIN, concurrency=2):
        results = [waits.delay(key) for key in keys for _ in range(2)]
        waiting = Job.objects.filter(waits_for__startswith="signal:race:")
        wait_for(lambda: waiting.count() == 40, 30, "all wait")
        for number in 1, 2:
            with transaction.atomic():
                for key in keys:
                    jobs.signal(key, number)
            # Both are woken, whoever looks first.
            for result in results:
                by_hand.run_now(result.id, "default")
            done = Job.objects.filter(task=waits.name, state="succeeded")
            wait_for(lambda: done.count() == 20 * number, 60, "one of each goes on")  # noqa: B023
            wait_for(lambda: waiting.count() == 40 - 20 * number, 30, "the others wait on")  # noqa: B023
    found = sorted((job.args[0], job.result) for job in done)
    assert found == sorted((key, number) for key in keys for number in (1, 2))
    assert not Signal.objects.filter(taken_by=None).exists()


@pytest.mark.parametrize("task", [stays_too_long, returns_late, goes_on_late])
def test_a_deadline_ends_what_runs(task, tmp_path):
    """While it awaits something, at its next step, and at its end."""
    with Worker(*BODIES, concurrency=1):
        result = task.delay("a", str(tmp_path / "stays"))
        [job] = wait_ended(result.id, timeout=20)
        wait_for(lambda: "undo a:one" in effects(), 20, "it is taken back")
    assert (job.state, job.error["type"]) == ("cancelled", "Expired")
    assert effects() == {"a:one": 1, "undo a:one": 1}
