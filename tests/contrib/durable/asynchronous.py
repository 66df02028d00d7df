"""Durable tasks that are coroutines, for workers."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from celery import shared_task
from django.db import connection

from jobs.lifecycle import transitions
from tests.contrib.durable.bodies import DAY, leave, undo
from tests.tasks import effect as child_effect


def finish(key: str, result: list) -> list:
    leave(f"{key}:charge")
    return result


async def fetch(key: str) -> dict:
    await asyncio.sleep(0.05)
    return {"text": key}


@shared_task(bind=True, durable=True, name="tests.durable.awaits")
async def awaits(self, key: str):
    """As ``onboard_fast``."""
    seat = await self.astep("reserve", leave, f"{key}:reserve")
    await self.astep("fetch", fetch, key)
    await self.asleep(0.3)
    answer = await self.await_for(f"approved:{key}", timeout=7 * DAY)
    mails = await self.agather([child_effect.s(f"{key}:{friend}") for friend in ("ann", "bob")])
    return self.commit(finish, key, [seat, answer, mails])


async def stay(self, key: str, path: str) -> None:
    await self.astep("one", leave, f"{key}:one", on_cancel=undo)
    Path(path).touch()
    await asyncio.sleep(60)


@shared_task(bind=True, durable=True, name="tests.durable.stays", soft_time_limit=2)
async def stays(self, key: str, path: str):
    await stay(self, key, path)


@shared_task(bind=True, durable=True, name="tests.durable.stays_too_long", deadline=2)
async def stays_too_long(self, key: str, path: str):
    await stay(self, key, path)


@shared_task(bind=True, durable=True, name="tests.durable.returns_late", deadline=2)
def returns_late(self, key: str, path: str):
    self.step("one", leave, f"{key}:one", on_cancel=undo)
    time.sleep(3)
    return "it is too late"


@shared_task(bind=True, durable=True, name="tests.durable.goes_on_late", deadline=2)
def goes_on_late(self, key: str, path: str):
    self.step("one", leave, f"{key}:one", on_cancel=undo)
    time.sleep(3)
    self.step("two", leave, f"{key}:two", on_cancel=undo)


def hang(key: str) -> str:
    time.sleep(60)
    return key


@shared_task(bind=True, durable=True, name="tests.durable.hangs_outside", time_limit=2)
async def hangs_outside(self, key: str):
    await self.astep("one", leave, f"{key}:one")
    await self.astep("two", hang, key, effect=True)


@shared_task(bind=True, durable=True, name="tests.durable.hangs_inside", time_limit=2)
async def hangs_inside(self, key: str):
    await self.astep("one", leave, f"{key}:one")
    await self.astep("two", hang, key)


@shared_task(bind=True, durable=True, name="tests.durable.two_steps")
async def two_steps(self, key: str):
    await self.astep("one", leave, f"{key}:one")
    await self.astep("two", leave, f"{key}:two")


@shared_task(bind=True, durable=True, name="tests.durable.calls_out")
async def calls_out(self, key: str):
    await self.astep("call", fetch, key, effect=True)


if "TEST_SESSIONS" in os.environ:
    hold = transitions.hold

    def note_session(job):
        """Whether the job is held over the session that its row names."""
        with connection.cursor() as cursor, Path(os.environ["TEST_SESSIONS"]).open("a") as file:
            cursor.execute("SELECT backend = pg_backend_pid() FROM jobs_job WHERE id = %s", [job.pk])
            print(cursor.fetchone()[0], file=file)
        return hold(job)

    transitions.hold = note_session
