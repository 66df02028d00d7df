"""Durable and async tasks beside all else: signals from other tasks, canvas, limits, unique jobs, and the crash kit."""

from __future__ import annotations

import asyncio
import datetime
import io
import json
from importlib.util import find_spec

import pytest
from asgiref.sync import iscoroutinefunction
from celery import chain, chord, group, shared_task
from django.core.management import call_command
from django.db import connection
from django.utils import timezone

import jobs
from jobs.contrib.durable.models import Signal, Step
from jobs.models import Job
from jobs.testing import NotIdempotent, assert_idempotent, run_jobs
from tests.contrib.durable import bodies
from tests.contrib.durable.bodies import CALLS, DAY, FAIL, job_of, later
from tests.helpers.harness import effects

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


@pytest.fixture(autouse=True)
def _clean():
    CALLS.clear()
    FAIL.clear()


# Signals from other tasks


@shared_task(name="tests.durable.tells")
def tells(key: str, fails: bool = False):
    jobs.signal(key, {"by": "a task"})
    if fails:
        raise LookupError("it rolls back")


@shared_task(name="tests.durable.tells_awaiting")
async def tells_awaiting(key: str):
    await jobs.asignal(key, {"by": "a task"})


@shared_task(bind=True, name="tests.durable.tells_in_commit")
async def tells_in_commit(self, key: str):
    return self.commit(jobs.signal, key, {"by": "a task"})


@shared_task(bind=True, durable=True, name="tests.durable.tells_in_step")
def tells_in_step(self, key: str):
    self.step("tell", jobs.signal, key, {"by": "a task"})


@pytest.mark.parametrize("task", [tells, tells_awaiting, tells_in_commit, tells_in_step], ids=lambda task: task.name)
def test_a_task_sends_the_signal_that_another_one_waits_for(task):
    result = bodies.waits.delay("k")
    run_jobs()
    task.delay("k")
    run_jobs()
    assert job_of(result).result == {"by": "a task"}


def test_a_signal_of_a_task_that_fails_was_not_sent():
    tells.delay("k", fails=True)
    run_jobs(raises=False)
    assert not Signal.objects.exists()


def test_prune_forgets_signals_that_nobody_took(settings):
    settings.JOBS = {**settings.JOBS, "RETENTION_SIGNALS": datetime.timedelta(days=1)}
    jobs.signal("old")
    Signal.objects.update(made_at=timezone.now() - 2 * DAY)
    jobs.signal("new")
    call_command("jobs", "prune", "--once", "--json", stdout=(out := io.StringIO()))
    assert json.loads(out.getvalue())["signals"] == 1
    assert Signal.objects.get().key == "new"


# What was done, and is taken back


@pytest.mark.parametrize("how", ["selection", "expiry"])
def test_a_waiting_job_is_taken_back_however_it_is_cancelled(how):
    result = bodies.takes_back.delay("a")
    run_jobs()
    if how == "selection":
        call_command("jobs", "cancel", "--task", bodies.takes_back.name, stdout=io.StringIO())
    else:
        Job.objects.filter(pk=result.id).update(expires_at=timezone.now() - DAY)
    run_jobs()
    assert job_of(result).state == "cancelled"
    assert effects() == {"a:1": 1, "a:2": 1, "undo a:1": 1, "undo a:2": 1}


UNDONE: list[str] = []


def undo_once(key: str) -> None:
    UNDONE.append(key)
    if UNDONE.count(key) == 1 and key == "one":
        raise LookupError("not now")


@shared_task(bind=True, durable=True, name="tests.durable.is_undone")
def is_undone(self):
    self.step("one", bodies.leave, "one", on_cancel=_undo_one)
    self.step("two", bodies.leave, "two", on_cancel=_undo_two)
    self.wait_for("never")


def _undo_one(key: str) -> None:
    undo_once("one")


def _undo_two(key: str) -> None:
    undo_once("two")


def test_what_fails_to_take_back_goes_on_there_after_a_retry():
    UNDONE.clear()
    result = is_undone.delay()
    run_jobs()
    call_command("jobs", "cancel", result.id, stdout=io.StringIO())
    run_jobs(raises=False)
    undo = Job.objects.get(task="jobs.compensate")
    assert (undo.state, UNDONE) == ("failed", ["two", "one"])
    call_command("jobs", "retry", str(undo.pk), stdout=io.StringIO())
    run_jobs()
    undo.refresh_from_db()
    assert (undo.state, UNDONE) == ("succeeded", ["two", "one", "one"])


# Awaited steps


TRIES: list[str] = []


async def breaks_twice(key: str) -> str:
    await asyncio.sleep(0)
    TRIES.append(key)
    if len(TRIES) < 3:
        raise ConnectionError("away")
    return key


def charge(key: str, idempotency_key: str) -> str:
    return idempotency_key


@shared_task(bind=True, durable=True, name="tests.durable.awaits_all")
async def awaits_all(self):
    first = await self.astep("one", breaks_twice, "a", retries=5, on_cancel=bodies.undo)
    key = await self.astep("two", charge, "b", effect=True)
    found = await self.agather([answers.s(1), answers.s(0)], return_exceptions=True)
    return [first, key.startswith("two"), [str(each) for each in found]]


@shared_task(name="tests.durable.answers")
async def answers(number: int):
    await asyncio.sleep(0)
    return 1 / number


@pytest.mark.skipif(not find_spec("jobs.contrib.effects"), reason="the ledger is an extension")
def test_awaited_steps_have_retries_the_ledger_and_children_that_are_coroutines(settings):
    settings.JOBS = {**settings.JOBS, "RETRY": [60] * 5}
    TRIES.clear()
    result = awaits_all.delay()
    run_jobs(until=later(1), raises=False)
    assert job_of(result).result == ["a", True, ["1.0", "division by zero"]]
    assert TRIES == ["a"] * 3
    assert Step.objects.get(name="one").on_cancel["args"] == ["a"]


# Canvas, limits, and unique jobs


@shared_task(bind=True, durable=True, name="tests.durable.adds_one")
def adds_one(self, number: int):
    return self.step("add", lambda: number + 1)


@shared_task(bind=True, durable=True, name="tests.durable.adds_one_awaiting")
async def adds_one_awaiting(self, number: int):
    return await self.astep("add", lambda: number + 1)


@shared_task(name="tests.durable.adds_one_plainly")
async def adds_one_plainly(number: int):
    await asyncio.sleep(0)
    return number + 1


@shared_task(name="tests.durable.total")
def total(numbers: list):
    return sum(numbers)


EACH = pytest.mark.parametrize(
    "task", [adds_one, adds_one_awaiting, adds_one_plainly], ids=["durable", "durable async", "async"]
)


@EACH
@pytest.mark.skipif(not find_spec("jobs.contrib.canvas"), reason="canvas is an extension")
def test_they_are_parts_of_a_canvas(task):
    chained = chain(task.s(1), task.s(), total_of_one.s()).delay()
    grouped = group(task.s(number) for number in range(3)).delay()
    joined = chord([task.s(number) for number in range(3)], total.s()).delay()
    run_jobs()
    assert (chained.get(), grouped.get(), joined.get()) == (3, [1, 2, 3], 6)


@shared_task(name="tests.durable.total_of_one")
def total_of_one(number: int):
    return number


@shared_task(bind=True, durable=True, concurrency=1, name="tests.durable.waits_alone")
def waits_alone(self, key: str):
    return self.wait_for(key)


@pytest.mark.skipif(not find_spec("jobs.contrib.limits"), reason="limits are an extension")
def test_who_waits_has_no_place_of_its_concurrency():
    results = [waits_alone.delay(f"k{number}") for number in range(3)]
    run_jobs()
    rows = Job.objects.filter(task=waits_alone.name)
    assert [*rows.values_list("state", "limit_slot")] == [("scheduled", None)] * 3
    for number in range(3):
        jobs.signal(f"k{number}", number)
    run_jobs()
    assert [job_of(result).result for result in results] == [0, 1, 2]


@shared_task(unique="only:{key}", name="tests.durable.only_async")
async def only_async(key: str):
    return key


def test_a_coroutine_may_be_unique_and_expire():
    first, second = only_async.delay("a"), only_async.delay("a")
    assert first.id == second.id
    late = only_async.apply_async(("b",), expires=timezone.now() - DAY)
    run_jobs()
    assert (job_of(first).state, job_of(late).error["type"]) == ("succeeded", "Expired")


# Event loops


@shared_task(bind=True, durable=True, name="tests.durable.one_awaited")
async def one_awaited(self):
    return 1


@shared_task(bind=True, durable=True, name="tests.durable.one_beside")
async def one_beside(self):
    assert iscoroutinefunction(self.astep)
    return await asyncio.gather(one_awaited(), self.astep("b", bodies.leave, "b", "kept"))


def test_a_durable_task_may_call_another_one_beside_its_steps():
    result = one_beside.delay()
    run_jobs()
    assert job_of(result).result == [1, "kept"]


@shared_task(bind=True, durable=True, name="tests.durable.plain_one")
def plain_one(self, key: str):
    return self.step("a", str, key)


@shared_task(bind=True, atomic=False, name="tests.durable.pays_plainly")
def pays_plainly(self, key: str):
    with jobs.effect("charge", key) as call:
        if not call.done:
            call.answered(key)


def test_a_plain_call_in_an_async_view_is_one():
    async def view():
        return plain_one("x"), plain_one.apply(("x",)).get()

    assert asyncio.run(view()) == ("x", "x")


@pytest.mark.skipif(not find_spec("jobs.contrib.effects"), reason="the ledger is an extension")
def test_plain_bodies_run_where_a_test_has_a_loop(monkeypatch):
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    plain_one.delay("x")
    pays_plainly.delay("x")

    async def test():
        return run_jobs()

    assert asyncio.run(test()).states == {"succeeded": 2}


turns: dict[str, int] = {}


@shared_task(bind=True, name="tests.durable.pays_beside")
async def pays_beside(self):
    has_paid = asyncio.Event()

    async def breaks():
        await has_paid.wait()
        for _ in range(turns["wait"]):
            await asyncio.sleep(0)
        raise LookupError("the other part")

    async def pays():
        async with jobs.effect("charge", "a") as call:
            call.answered("paid")
            has_paid.set()

    await asyncio.gather(pays(), breaks())


@pytest.mark.skipif(not find_spec("jobs.contrib.effects"), reason="the ledger is an extension")
@pytest.mark.parametrize("wait", range(5))
def test_an_answer_is_kept_though_another_part_of_the_body_fails(wait):
    from jobs.contrib.effects.models import Effect

    turns["wait"] = wait
    pays_beside.delay()
    with pytest.raises(LookupError):
        run_jobs()
    assert Effect.objects.get().state == "sent"


# The crash kit


@shared_task(bind=True, durable=True, name="tests.durable.is_safe")
async def is_safe(self, key: str):
    await self.astep("one", bodies.leave, f"{key}:one")
    return self.commit(bodies.leave, f"{key}:two")


@shared_task(bind=True, name="tests.durable.is_not_safe")
async def is_not_safe(self, key: str):
    from tests.models import Effect

    await Effect.objects.acreate(key=key)
    return self.commit(bodies.leave, f"{key}:two")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(connection.vendor == "mysql", reason="copies of a database are made on SQLite and PostgreSQL")
def test_the_crash_kit_knows_coroutines():
    assert_idempotent(is_safe, "a")
    with pytest.raises(NotIdempotent, match="is_not_safe"):
        assert_idempotent(is_not_safe, "a")
