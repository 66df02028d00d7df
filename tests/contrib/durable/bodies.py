"""Durable tasks of the tests."""

from __future__ import annotations

import datetime
import os
import time
from contextlib import suppress
from pathlib import Path

from celery import shared_task
from django.db import connection
from django.utils import timezone

from jobs import Snooze
from jobs.lifecycle import transitions
from jobs.lifecycle.run import current_job
from jobs.models import Job
from tests.models import Effect
from tests.tasks import effect as child_effect
from tests.tasks import noop

DAY = datetime.timedelta(days=1)

#: What a step raises, by its key: each failure once.
FAIL: dict[str, list[BaseException]] = {}
#: How often each function was called, also where it was rolled back.
CALLS: list[str] = []


def leave(key: str, result: object = None) -> object:
    CALLS.append(key)
    Effect.objects.create(key=key)
    if FAIL.get(key):
        raise FAIL[key].pop(0)
    return {"key": key} if result is None else result


def undo(key: str, result: object = None) -> None:
    Effect.objects.create(key=f"undo {key}")


@shared_task(bind=True, durable=True, name="tests.durable.onboard")
def onboard(self, key: str):
    seat = self.step("reserve", leave, f"{key}:reserve")
    self.sleep(2 * DAY)
    answer = self.wait_for(f"approved:{key}", timeout=7 * DAY)
    mails = self.gather([child_effect.s(f"{key}:{friend}") for friend in ("ann", "bob")])
    self.step("charge", leave, f"{key}:charge")
    return [seat, answer, mails]


@shared_task(bind=True, durable=True, name="tests.durable.steps")
def steps(self, keys: list, **options):
    return [self.step(key, leave, key, **options) for key in keys]


@shared_task(bind=True, durable=True, name="tests.durable.goes_far")
def goes_far(self, number: int):
    for each in range(number // 2):
        self.step("it", leave, f"{each}")
    self.wait_for("go on")
    for each in range(number // 2, number):
        self.step("it", leave, f"{each}")
    return number


@shared_task(bind=True, durable=True, name="tests.durable.rests")
def rests(self, key: str):
    self.step("before", leave, f"{key}:before")
    self.sleep(2 * DAY)
    self.step("after", leave, f"{key}:after")


@shared_task(bind=True, durable=True, name="tests.durable.acts_between_steps")
def acts_between_steps(self, key: str):
    self.step("before", leave, f"{key}:before")
    leave(f"{key}:between")
    self.step("after", leave, f"{key}:after")


@shared_task(bind=True, durable=True, name="tests.durable.catches")
def catches(self, key: str):
    try:
        self.step("first", leave, key)
    except LookupError as exc:
        self.step("instead", leave, f"{key}:instead")
        self.sleep(DAY)
        return f"{type(exc).__name__}: {exc}"


@shared_task(bind=True, durable=True, name="tests.durable.swallows")
def swallows(self, key: str):
    with suppress(BaseException):
        self.sleep(DAY)
    try:
        return self.step("after", leave, key)
    except BaseException:
        return "went on"


@shared_task(bind=True, durable=True, name="tests.durable.waits")
def waits(self, key: str, timeout: float | None = None):
    return self.wait_for(key, timeout=timeout)


@shared_task(bind=True, durable=True, name="tests.durable.takes_back")
def takes_back(self, key: str):
    self.step("one", leave, f"{key}:1", on_cancel=undo)
    self.step("two", leave, f"{key}:2", on_cancel=undo)
    self.wait_for(f"go:{key}")
    self.step("three", leave, f"{key}:3", on_cancel=undo)


@shared_task(bind=True, durable=True, deadline=DAY, name="tests.durable.late")
def late(self, key: str):
    self.step("one", leave, key, on_cancel=undo)
    self.sleep(30 * DAY)


@shared_task(bind=True, durable=True, name="tests.durable.gathers")
def gathers(self, calls: list, return_exceptions: bool = False):
    from celery import signature

    found = self.gather([signature(each) for each in calls], return_exceptions=return_exceptions)
    return [f"{type(each).__name__}: {each}" if isinstance(each, Exception) else each for each in found]


@shared_task(name="tests.durable.fails")
def fails(text: str):
    raise LookupError(text)


def snooze() -> None:
    raise Snooze(5)


@shared_task(bind=True, durable=True, name="tests.durable.onboard_fast")
def onboard_fast(self, key: str):
    seat = self.step("reserve", leave, f"{key}:reserve")
    self.sleep(0.3)
    answer = self.wait_for(f"approved:{key}", timeout=7 * DAY)
    mails = self.gather([child_effect.s(f"{key}:{friend}") for friend in ("ann", "bob")])
    self.step("charge", leave, f"{key}:charge")
    return [seat, answer, mails]


@shared_task(bind=True, durable=True, name="tests.durable.deployed")
def deployed(self, key: str):
    self.step("reserve", leave, f"{key}:reserve")
    self.wait_for(f"first:{key}")
    if "JOBS_TEST_NEW_CODE" in os.environ and self.version("new"):
        self.step("new", leave, f"{key}:new")
    self.step("charge", leave, f"{key}:charge")
    self.wait_for(f"second:{key}")
    self.step("end", leave, f"{key}:end")


@shared_task(bind=True, durable=True, name="tests.durable.ten_steps")
def ten_steps(self, key: str):
    for number in range(10):
        self.step(f"step {number}", leave, f"{key}:{number}")
        time.sleep(0.02)


def hang(path: str, key: str) -> dict:
    if not Path(path).exists():
        time.sleep(60)
    return leave(key)


@shared_task(bind=True, durable=True, name="tests.durable.hangs", time_limit=3)
def hangs(self, key: str, path: str):
    self.step("one", leave, f"{key}:one")
    self.step("two", hang, path, f"{key}:two")


@shared_task(bind=True, durable=True, name="tests.durable.naps_in_a_step", soft_time_limit=1)
def naps_in_a_step(self, key: str):
    self.step("one", leave, f"{key}:one", on_cancel=undo)
    self.step("two", hang, "/nowhere", f"{key}:two")


@shared_task(bind=True, durable=True, name="tests.durable.stays_in_a_step")
def stays_in_a_step(self, key: str, path: str):
    self.step("one", leave, f"{key}:one", on_cancel=undo)
    Path(path).touch()
    self.step("two", hang, "/nowhere", f"{key}:two", on_cancel=undo)


@shared_task(bind=True, durable=True, name="tests.durable.dozes")
def dozes(self, key: str):
    self.sleep(0.5)
    self.step("after", leave, f"{key}:after")


def lose(path: str, key: str) -> None:
    leave(key)
    if not Path(path).exists():
        Path(path).touch()
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


@shared_task(bind=True, durable=True, name="tests.durable.loses")
def loses(self, key: str, path: str):
    self.step("one", leave, f"{key}:one")
    self.step("two", lose, path, f"{key}:two")


@shared_task(bind=True, durable=True, name="tests.durable.invites")
def invites(self, key: str):
    self.step("one", leave, f"{key}:one")
    mails = self.gather([child_effect.s(f"{key}:{friend}") for friend in ("ann", "bob")])
    self.step("two", leave, f"{key}:two")
    return mails


@shared_task(bind=True, durable=True, name="tests.durable.many_children")
def many_children(self, number: int):
    return len(self.gather([noop.s(each) for each in range(number)]))


def nap(seconds: float) -> None:
    time.sleep(seconds)


def job_of(result) -> Job:
    return Job.objects.get(pk=result.id)


def later(days: float) -> datetime.datetime:
    return timezone.now() + datetime.timedelta(days=days)


ASKED: list[str] = []


def call(key: str, idempotency_key: str) -> str:
    """Somebody asks the job to end while the call is made, if that is wanted."""
    ASKED.append(idempotency_key)
    if key == "cancelled":
        assert transitions.ask_to_end(current_job().pk, "default")
    return key


@shared_task(bind=True, durable=True, name="tests.durable.charges_all")
def charges_all(self, keys: list):
    found = [self.step("charge", call, key, effect=True, on_cancel=refund) for key in keys]
    self.wait_for("go")
    return found


def refund(key: str, **_: object) -> None:
    Effect.objects.create(key=f"refund {key}")
