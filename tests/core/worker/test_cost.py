"""What it costs to find jobs: how many claims and other statements."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import termios
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from celery import current_app
from django.db import connection

from jobs.lifecycle import claims as lifecycle_claims
from jobs.lifecycle.wakeups import ONE, SOME, Wakeup
from jobs.lifecycle.worker_state import worker_state
from jobs.models import Job
from jobs.worker import pool
from jobs.worker import runner as worker_runner
from jobs.worker.runner import Runner
from tests import tasks
from tests.faults.worker import Worker
from tests.helpers.harness import wait_ended, wait_for, wait_heartbeats
from tests.helpers.looks import Looks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]

QUEUE = "celery"


@pytest.fixture
def runner(node, monkeypatch):
    """A process of a worker whose others are all busy: nobody takes a wake-up."""
    monkeypatch.setattr(Runner, "wakeup", Wakeup())
    worker_state.queues = [QUEUE]
    runner = Runner(current_app._get_current_object(), "here")
    yield runner
    runner.slot.free()


@pytest.fixture
def claims(runner, monkeypatch) -> list[str]:
    """The queues that it claims from, claim by claim."""
    queues, take = [], runner._claimer.take
    monkeypatch.setattr(
        runner._claimer, "take", lambda using, claim: (queues.append(claim.queue), take(using, claim))[1]
    )
    return queues


def unread(wakeup: Wakeup) -> int:
    """How many wake-ups nobody has taken yet."""
    return struct.unpack("i", fcntl.ioctl(wakeup.fileno(), termios.FIONREAD, bytes(4)))[0]


def test_a_drain_leaves_no_wakeups_behind(runner, claims, settings):
    """Each full claim wakes one for the rest. While all are busy nobody takes that, and afterwards each was a claim."""
    settings.JOBS = {**settings.JOBS, "CLAIM_BATCH": 1}
    tasks.noop.delay_many([(number,) for number in range(200)], queue=QUEUE)
    while runner.run_batch():
        pass
    assert not Job.objects.exclude(state="succeeded").exists()
    assert len(claims) == 200 + 2, "the last one, and one more for all that was told meanwhile"
    assert unread(runner.wakeup) == 0
    assert not runner.run_batch()
    assert len(claims) == 203


def test_what_is_told_during_a_look_is_looked_for_once_more(runner, monkeypatch):
    """It may have been committed after that look."""
    take = runner._claimer.take

    def take_and_tell(*args):
        found = take(*args)
        if not Job.objects.exists():
            tasks.noop.apply_async((1,), queue=QUEUE)
            runner.wakeup.send()
        return found

    monkeypatch.setattr(runner._claimer, "take", take_and_tell)
    assert runner.run_batch()
    assert Job.objects.get().state == "succeeded"


# Many queues


@pytest.fixture
def many(runner, claims, monkeypatch) -> list[str]:
    """The process consumes 200 queues. What it asks of all of them is noted among its claims."""
    promising = runner._claimer.promising
    monkeypatch.setattr(runner._claimer, "promising", lambda *args: (claims.append("?"), promising(*args))[1])
    worker_state.queues = [f"queue-{number:03}" for number in range(200)]
    return claims


def drain(runner) -> None:
    while runner.run_batch():
        pass
    assert not Job.objects.exclude(state="succeeded").exists()


def test_queues_that_are_empty_cost_no_claim(runner, many, settings, monkeypatch):
    settings.JOBS = {**settings.JOBS, "CLAIM_BATCH": 1}
    monkeypatch.setattr(worker_runner, "AGAIN", 3600.0)
    tasks.noop.delay_many([(number,) for number in range(50)], queue="queue-077")
    drain(runner)
    # Before, at the last claim, and for what was told meanwhile.
    assert Counter(many) == {"queue-077": 50 + 1, "?": 3}
    many.clear()
    assert not runner.run_batch()
    assert many == ["?"]


def test_queues_take_turns_and_none_starves(runner, many, settings, monkeypatch):
    settings.JOBS = {**settings.JOBS, "CLAIM_BATCH": 1}
    monkeypatch.setattr(worker_runner, "AGAIN", 3600.0)
    names = ["queue-003", "queue-050", "queue-199"]
    for name in names:
        tasks.noop.delay_many([(number,) for number in range(4)], queue=name)
    drain(runner)
    claimed = [name for name in many if name != "?"][:12]
    assert [sorted(claimed[start : start + 3]) for start in range(0, 12, 3)] == [names] * 4


def test_a_queue_that_gets_a_job_while_another_one_is_full_has_its_turn_soon(runner, many, settings, monkeypatch):
    settings.JOBS = {**settings.JOBS, "CLAIM_BATCH": 1}
    monkeypatch.setattr(worker_runner, "AGAIN", 0.0)
    monkeypatch.setattr(lifecycle_claims, "RARELY", 0.0)
    tasks.noop.delay_many([(number,) for number in range(20)], queue="queue-003")
    assert runner.run_batch()
    tasks.noop.apply_async((1,), queue="queue-050")
    assert runner.run_batch()
    assert runner.run_batch()
    assert "queue-050" in many
    assert worker_runner.AGAIN == 0.0
    monkeypatch.undo()
    assert worker_runner.AGAIN + lifecycle_claims.LOOK < 2


def test_a_queue_that_is_added_is_claimed_from_at_once(runner, many):
    tasks.noop.delay_many([(1,)], queue="queue-003")
    drain(runner)
    tasks.noop.apply_async((1,), queue="zzz")
    assert not runner.run_batch()
    worker_state.queues = [*worker_state.queues, "zzz"]
    assert runner.run_batch()
    worker_state.queues = ["queue-001", "queue-002"]
    tasks.noop.apply_async((1,), queue="zzz")
    assert not runner.run_batch()


@pytest.mark.parametrize(("woken", "passes_on"), [(ONE, 0), (SOME, 1), (ONE + ONE, 1), (b"", 1)])
def test_who_was_woken_for_one_job_wakes_nobody_else(runner, woken, passes_on):
    tasks.noop.apply_async((1,), queue=QUEUE)
    assert runner.run_batch(woken)
    assert unread(runner.wakeup) == passes_on


# Real workers


@pytest.fixture
def looks(tmp_path):
    """How often workers look for jobs that get its ``env``."""
    if connection.vendor != "postgresql":
        pytest.skip("PostgreSQL only: elsewhere nobody is told")
    return Looks(tmp_path / "looks")


@pytest.mark.parametrize("count", [1, 5])
def test_a_job_that_comes_alone_costs_two_claims_however_many_workers_wait(looks, count, settings):
    """One that gets it, and one after its body."""
    settings.JOBS = {**settings.JOBS, "POLL_INTERVAL": 1.0}
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(concurrency=2, **looks.env)) for _ in range(count)]
        # They know each other by then.
        for worker in workers:
            wait_heartbeats(worker.node.pk)
        wait_ended(tasks.effect.delay("warm").id)
        before = looks.count()
        for number in range(20):
            wait_ended(tasks.effect.delay(str(number)).id)
            # Until those have looked who were not the first.
            time.sleep(0.1)
        claims, others = looks.count() - before, looks.count("look")
        nodes = set(Job.objects.exclude(node=None).values_list("node", flat=True))
    # A clock may look at the same moment, and a machine be busy.
    assert claims < 3 * 20
    assert len(nodes) >= min(count, 3), "they take turns"
    assert others > 0


@pytest.mark.skipif(not hasattr(select, "EPOLLEXCLUSIVE"), reason="Linux only: elsewhere all wake, and one takes it")
def test_a_wakeup_wakes_one_process_of_those_that_wait():
    wakeup, (pipe, _) = Wakeup(), os.pipe()
    children = []
    for _ in range(4):
        if (child := os.fork()) == 0:
            wait = pool.waiter(pipe, wakeup)
            while True:
                wait(60)
        children.append(child)
    try:
        for child in children:
            wait_for(lambda: Path(f"/proc/{child}/stat").read_text().split()[2] == "S", 10, "it waits")  # noqa: B023
        before = sum(map(sleeps, children))
        for _ in range(50):
            wakeup.send()
            wait_for(lambda: not unread(wakeup), 10, "one has taken it")
        # One sleeps once more for each, and of all four each would.
        assert sum(map(sleeps, children)) - before < 100
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def sleeps(pid: int) -> int:
    """How often the process began to wait for something."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("voluntary")]
    return int(line.split()[1])


# Memory


def test_a_process_imports_nothing_for_itself(tmp_path):
    """What all of them need is there before they are forked, once for all."""
    path = tmp_path / "imports"
    with Worker(concurrency=1, JOBS_TEST_IMPORTS=str(path)):
        wait_ended(tasks.effect.delay("a").id)
        wait_for(path.exists, 10, "the process said what it imported")
    assert path.read_text() == ""
