"""What async bodies cost: statements of a claim, Python of a run, and what counts when a claim goes wrong."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref
from importlib.util import find_spec  # noqa: F401
from pathlib import Path

import pytest
from celery import current_app, shared_task
from celery.exceptions import SoftTimeLimitExceeded
from django.db import IntegrityError, OperationalError, connection

import jobs
from jobs.contrib.aio import bodies as aio_bodies
from jobs.contrib.aio import runner as aio_runner
from jobs.contrib.aio.bodies import Bodies
from jobs.contrib.aio.runner import AsyncRunner
from jobs.contrib.aio.slots import take_block
from jobs.lifecycle import claims
from jobs.lifecycle.run import current_run
from jobs.lifecycle.wakeups import Wakeup
from jobs.lifecycle.worker_state import worker_state
from jobs.maintenance.rescue import OwnJobs
from jobs.models import Job
from jobs.store import postgresql
from tests.helpers import driver
from tests.helpers.harness import wait_ended
from tests.helpers.servers import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]
on_postgresql = pytest.mark.skipif("connection.vendor != 'postgresql'", reason="its claim is one statement")

QUEUE, NUMBER = "celery", 10


@shared_task
async def empty(number):
    return None


@pytest.fixture
def slots(node):
    worker_state.queues = [QUEUE]
    return take_block(NUMBER)


@pytest.fixture
def runner(slots):
    return AsyncRunner(current_app._get_current_object(), "here", (empty.name,), slots[0], Wakeup())


def fill(number=NUMBER):
    return empty.delay_many([(each,) for each in range(number)], queue=QUEUE)


@on_postgresql
def test_a_claim_is_one_statement(runner, slots, monkeypatch):
    """The rows have their last token, and the claim is on the disk, when it returns."""
    fill()
    with driver.executed(monkeypatch) as found:
        runs, _ = runner.take_some(slots[1:])
    assert len(runs) == NUMBER
    assert sum("UPDATE jobs_job" in sql for sql in found) == 1, found
    assert {run.job.token for run in runs} == set(Job.objects.values_list("token", flat=True))
    assert all(run.job.token < 0 for run in runs)


@on_postgresql
@pytest.mark.parametrize(("token", "synced"), [(5, "off"), (-5, "on")])
def test_a_claim_whose_bodies_begin_at_once_waits_for_the_disk(token, synced):
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {postgresql.CLAIMED}", {"token": token})
        assert cursor.fetchone() == (synced,)


def test_a_claim_whose_answer_is_lost_counts_nothing(runner, slots, monkeypatch):
    fill()
    take = runner._claimer.take

    def lose(*args):
        take(*args)
        raise OperationalError("the answer is lost")

    with monkeypatch.context() as patch:
        patch.setattr(runner._claimer, "take", lose)
        assert runner.take_some(slots[1:])[0] == []
    assert set(Job.objects.values_list("state", flat=True)) == {"running"}
    runner._away.clear()
    runs, _ = runner.take_some(slots[1:])
    assert {run.job.pk for run in runs} == set(Job.objects.values_list("pk", flat=True))
    assert set(Job.objects.values_list("node_losses", "crashes")) == {(0, 0)}


class Death(BaseException):
    """The process is killed at this point."""


def test_a_process_that_dies_before_all_of_a_claim_have_slots_has_begun_none(runner, slots, monkeypatch):
    fill()
    name, named = runner._name, []

    def die(run, batch):
        if len(named) == 3:
            raise Death
        name(run, batch)
        named.append(run)

    monkeypatch.setattr(runner, "_name", die)
    with pytest.raises(Death):
        runner.take_some(slots[1:])
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for slot in worker_state.occupied():
        worker_state.pids[slot.index] = gone.pid
    OwnJobs(1).finish_dead()
    assert set(Job.objects.values_list("state", "node_losses", "crashes")) == {("ready", 0, 0)}


def test_one_slow_look_keeps_nobody_from_the_next(runner, slots, monkeypatch):
    """It may be the one that makes the connection. A second one steps over many jobs of other tasks."""
    monkeypatch.setattr(claims, "SLOW_LOOK", 0.0)
    monkeypatch.setattr(aio_runner, "RESTS", 1e9)
    assert runner.take_some(slots[1:])[0] == []
    fill()
    assert len(runner.take_some(slots[1:])[0]) == NUMBER
    assert runner.take_some(slots[1:])[0] == []
    fill()
    assert runner.take_some(slots[1:])[0] == [], "it rests"


def test_a_look_at_a_database_that_does_not_answer_puts_nothing_to_rest(runner, slots, monkeypatch):
    monkeypatch.setattr(claims, "SLOW_LOOK", 0.0)
    monkeypatch.setattr(aio_runner, "RESTS", 1e9)

    def fail(*args):
        raise OperationalError("the database is away")

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(runner._claimer, "take", fail)
            assert runner.take_some(slots[1:])[0] == []
        runner._away.clear()
    fill()
    assert len(runner.take_some(slots[1:])[0]) == NUMBER


def test_rows_that_the_database_does_not_give_back_stop_no_claim(runner, slots, monkeypatch):
    """The supervisor gives them back, as rows that no process has."""
    runner._doubtful.append(("default", -5))

    def refuse(*args):
        raise IntegrityError("a constraint of the project")

    monkeypatch.setattr(aio_runner.transitions, "hand_back_claim", refuse)
    fill()
    assert len(runner.take_some(slots[1:])[0]) == NUMBER
    assert not runner._doubtful


def test_a_loop_that_is_woken_for_plain_jobs_lets_them_go_first(node, monkeypatch):
    worker_state.queues = [QUEUE]
    monkeypatch.setattr(aio_bodies, "BEHIND", 0.5)
    monkeypatch.setattr(aio_bodies, "WITHIN", 60.0)
    # Looks that nobody asked for would count as well.
    monkeypatch.setattr(AsyncRunner, "patience", 60.0)
    bodies = Bodies((empty.name,))
    try:
        bodies.start(current_app._get_current_object(), "here")
        wait_for(lambda: bodies._vain_at > 0, 10, "it has looked at its start")
        for looks in range(1, 9):
            began = time.monotonic()
            bodies._wakeup.send()
            wait_for(lambda: bodies._vain == looks, 10, "it has looked")  # noqa: B023
            assert looks <= aio_bodies.VAIN + 1 or time.monotonic() - began >= 0.5
        [result] = fill(1)
        bodies._wakeup.send()
        wait_ended(result.id)
        wait_for(lambda: bodies._vain <= 1, 10, "it has found one")
        # One now and then is no stream.
        monkeypatch.setattr(aio_bodies, "WITHIN", 0.0)
        for _ in range(5):
            at = bodies._vain_at
            bodies._wakeup.send()
            wait_for(lambda: bodies._vain_at > at, 10, "it has looked")  # noqa: B023
        assert bodies._vain == 0
    finally:
        bodies.retire()
        bodies.wait()


@pytest.mark.parametrize("number", [20, 40])
def test_of_a_few_that_come_at_once_others_get_their_share(number, node, monkeypatch):
    worker_state.queues = [QUEUE]
    monkeypatch.setattr(aio_bodies, "TURN", 60.0)
    bodies = Bodies((empty.name,))
    monkeypatch.setattr(bodies, "_begin", lambda run: (run, None, None, 1e9))
    app, (first, *slots) = current_app._get_current_object(), take_block(number)
    other = AsyncRunner(app, "here", (empty.name,), first, Wakeup())
    try:
        fill(number)
        bodies.start(app, "here")
        wait_for(lambda: bodies._started, 10, "it has claimed some")
        runs, _ = other.take_some(slots)
        assert len(runs) >= number / 2
    finally:
        bodies.retire()
        bodies.running.clear()
        bodies.wait()


@shared_task
async def noted(number):
    run = current_run()
    await asyncio.ensure_future(asyncio.sleep(0))
    assert not vars(run)["awaited"].children
    ran.extend(map(weakref.ref, (run, run.job, run.request, vars(run)["awaited"])))


ran: list[weakref.ref] = []


def test_runs_that_succeeded_leave_nothing_for_the_garbage_collection(node):
    worker_state.queues = [QUEUE]
    ran.clear()
    bodies, before = Bodies((noted.name,)), gc.get_threshold()
    # Other tests may have left a higher one.
    gc.set_threshold(700, *before[1:])
    gc.disable()
    try:
        bodies.start(current_app._get_current_object(), "here")
        results = noted.delay_many([(number,) for number in range(20)], queue=QUEUE)
        bodies._wakeup.send()
        wait_ended(*[each.id for each in results])
        wait_for(lambda: not bodies.running, 10, "they are over")
        assert len(ran) == 80
        # It looks for garbage less often the more places it has.
        assert gc.get_threshold() == (100 * aio_bodies.ALIVE, *before[1:])
        wait_for(lambda: sum(each() is not None for each in ran) <= 4, 10, "all but the last are gone")
    finally:
        gc.enable()
        gc.set_threshold(*before)
        bodies.retire()
        bodies.wait()


@shared_task(bind=True)
async def answers(self):
    """The thread is busy with something else when the answer comes."""
    async with jobs.effect("charge", "a") as call:
        process["thread"].submit(process["gate"].wait, 30)
        call.answered("paid")
        process["answered"].set()


@shared_task(bind=True)
async def answers_beside(self):
    async def breaks():
        while not process["answered"].is_set():
            await asyncio.sleep(0.005)
        raise SoftTimeLimitExceeded

    await asyncio.gather(answers.run(), breaks())


process: dict = {}


@pytest.mark.skipif("not find_spec('jobs.contrib.effects')", reason="the ledger is an extension")
@pytest.mark.parametrize("how", ["strike", "end", "beside"])
def test_what_was_answered_is_written_though_the_body_is_cancelled(how, node):
    from jobs.contrib.effects.models import Effect

    worker_state.queues = [QUEUE]
    task = answers_beside if how == "beside" else answers
    bodies = Bodies((task.name,))
    process.update(gate=threading.Event(), answered=threading.Event())
    try:
        bodies.start(current_app._get_current_object(), "here")
        wait_for(lambda: bodies._executor, 10, "it has its thread")
        process["thread"] = bodies._executor
        result = task.apply_async(queue=QUEUE)
        bodies._wakeup.send()
        assert process["answered"].wait(20)
        awaited = next(iter(bodies.running.values()), None)
        told = threading.Event()

        def strike():
            getattr(awaited, how, lambda exc: None)(SoftTimeLimitExceeded())
            bodies.loop.call_later(0.05, told.set)

        bodies.loop.call_soon_threadsafe(strike)
        assert told.wait(10)
        process["gate"].set()
        [job] = wait_ended(result.id)
    finally:
        process["gate"].set()
        bodies.retire()
        bodies.wait()
    assert (job.state, job.error["type"]) == ("failed", "SoftTimeLimitExceeded")
    assert Effect.objects.get().state == "sent"


@on_postgresql
def test_a_run_makes_few_calls(node, settings, monkeypatch):
    """Functions of ours that 100 empty bodies go through, from the claim to the end, in both threads."""
    settings.JOBS = {**settings.JOBS, "ASYNC_CONCURRENCY": 200}
    # Other tests have tasks with limits.
    monkeypatch.setattr(claims, "claimer", claims.Claimer)
    worker_state.queues = [QUEUE]
    home, called = str(Path(jobs.__file__).parent), 0

    def note(frame, event, argument):
        nonlocal called
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(home) and code.co_name[0] != "<":
            called += 1

    bodies = Bodies((empty.name,))
    threading.setprofile(note)

    def run(number):
        results = fill(number)
        bodies._wakeup.send()
        wait_ended(*[each.id for each in results])

    try:
        bodies.start(current_app._get_current_object(), "here")
        run(5)
        counts = []
        # Where the machine is busy fewer of them are claimed, and end, together.
        for _ in range(3):
            before = called
            run(100)
            counts.append(called - before)
    finally:
        threading.setprofile(None)
        bodies.retire()
        bodies.wait()
    # 123 when each run had a task of asyncio's around its own, and was named and renewed beside its claim.
    assert min(counts) < 100 * 115
