"""Durable tasks whose bodies are ``async def``: the same steps and waits, in forms to await."""

from __future__ import annotations

import asyncio

import pytest
from celery import shared_task
from django.db import connection

import jobs
from jobs.contrib.durable.models import Step
from jobs.models import Job
from jobs.testing import run_jobs
from tests import tasks
from tests.contrib.durable import bodies
from tests.contrib.durable.bodies import CALLS, DAY, FAIL, job_of, later
from tests.helpers.harness import effects

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


@pytest.fixture(autouse=True)
def _clean():
    CALLS.clear()
    FAIL.clear()


async def fetch(key: str) -> dict:
    CALLS.append(key)
    assert not connection.in_atomic_block
    await asyncio.sleep(0)
    if FAIL.get(key):
        raise FAIL[key].pop(0)
    return {"text": key}


@shared_task(bind=True, durable=True, name="tests.durable.asynchronous")
async def asynchronous(self, key: str):
    seat = await self.astep("reserve", bodies.leave, f"{key}:reserve")
    text = await self.astep("fetch", fetch, key)
    await self.asleep(2 * DAY)
    answer = await self.await_for(f"approved:{key}", timeout=7 * DAY)
    mails = await self.agather([tasks.effect.s(f"{key}:ann")])
    way = "new" if await self.aversion("2026-11") else "old"
    return self.commit(finish, key, [seat, text, answer, mails, way])


def finish(key: str, result: list) -> list:
    bodies.leave(f"{key}:end")
    return result


def test_from_the_first_step_to_the_last():
    result = asynchronous.delay("a")
    run_jobs(until=later(3))
    assert job_of(result).waits_for == "signal:approved:a", job_of(result).error
    jobs.signal("approved:a", 7)
    run_jobs()
    job = job_of(result)
    assert job.state == "succeeded", job.error
    assert job.result == [{"key": "a:reserve"}, {"text": "a"}, 7, ["a:ann"], "new"]
    assert effects() == {"a:reserve": 1, "a:ann": 1, "a:end": 1}
    assert CALLS == ["a:reserve", "a", "a:end"]


def test_an_awaited_step_that_fails_is_tried_again_and_only_that(settings):
    settings.JOBS = {**settings.JOBS, "RETRY": [10]}
    FAIL["a"] = [ConnectionError("away")]
    result = asynchronous.delay("a")
    run_jobs()
    assert (job_of(result).state, job_of(result).error["message"]) == ("scheduled", "away")
    assert Step.objects.get(name="fetch").failures == 1
    run_jobs(until=later(30))
    assert job_of(result).state == "succeeded", job_of(result).error
    assert CALLS == ["a:reserve", "a", "a", "a:end"]


@pytest.mark.parametrize("name", ["step", "sleep", "wait_for", "gather", "version"])
def test_what_blocks_the_loop_is_refused_with_what_to_write(name):
    @shared_task(bind=True, durable=True, name=f"tests.durable.blocks {name}")
    async def blocks(self):
        getattr(self, name)("x", bodies.leave, "x")

    blocks.delay()
    with pytest.raises(TypeError, match=rf"await self\.a{name}\(\)"):
        run_jobs()


def test_a_step_that_nobody_awaits_fails_the_body():
    @shared_task(bind=True, durable=True, name="tests.durable.forgets")
    async def forgets(self):
        first = self.astep("one", bodies.leave, "one")
        second = self.astep("two", bodies.leave, "two")
        await second
        if first is None:
            await first
        return "done"

    forgets.delay()
    with pytest.raises(TypeError, match=r"did not await self\.astep\(\), which did nothing"):
        run_jobs()
    assert effects() == {"two": 1}


def test_a_wait_is_no_error_that_the_body_could_catch():
    @shared_task(bind=True, durable=True, name="tests.durable.aswallows")
    async def swallows(self):
        try:
            await self.asleep(DAY)
        except BaseException:
            return "went on"

    result = swallows.delay()
    run_jobs()
    assert Job.objects.get(pk=result.id).state == "scheduled"


def test_an_awaited_external_call_goes_through_the_ledger():
    seen = []

    async def charge(amount, idempotency_key):
        seen.append((amount, idempotency_key))
        return {"id": "ch_1"}

    @shared_task(bind=True, durable=True, name="tests.durable.acharges")
    async def charges(self):
        answer = await self.astep("charge", charge, 5, effect=True)
        await self.asleep(DAY)
        return answer

    result = charges.delay()
    run_jobs(until=later(2))
    assert job_of(result).result == {"id": "ch_1"}
    assert seen == [(5, f"charge:{result.id}")]


def test_a_step_inside_of_an_awaited_step_is_refused_and_two_side_by_side_are_not():
    @shared_task(bind=True, durable=True, name="tests.durable.nested_async")
    async def nested(self, inside: bool):
        async def outer():
            return await self.astep("inner", fetch, "inner")

        if inside:
            return await self.astep("outer", outer)
        return await asyncio.gather(self.astep("one", fetch, "one"), self.astep("two", fetch, "two"))

    nested.delay(True)
    with pytest.raises(RuntimeError, match="'inner' is inside of another step"):
        run_jobs()
    assert "inner" not in CALLS
    beside = nested.delay(False)
    run_jobs()
    assert job_of(beside).result == [{"text": "one"}, {"text": "two"}]
