"""What a body does outside of its steps happens again at each wake: that is found, with the cure."""

from __future__ import annotations

import pytest
from asgiref.sync import sync_to_async
from celery import shared_task
from django.core import mail
from django.core.cache import cache
from django.db import connection, transaction

import jobs
from jobs.contrib.durable.models import Signal
from jobs.errors import NotIsolated, NotIsolatedWarning
from jobs.models import Job
from jobs.testing import isolation, run_jobs
from tests import tasks
from tests.models import Effect

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


def write() -> None:
    Effect.objects.create(key="a")


def write_in_a_transaction() -> None:
    with transaction.atomic():
        Effect.objects.create(key="a")


def change() -> None:
    Effect.objects.update(key="b")


def delete() -> None:
    Effect.objects.filter(key="a")._raw_delete("default")


def call() -> None:
    tasks.effect.delay("called")


def call_many() -> None:
    tasks.effect.delay_many([("called",), ("also",)])


def send() -> None:
    jobs.signal("k")


def send_mail() -> None:
    mail.send_mail("Welcome", "", None, ["ada@example.com"])


EFFECTS = {
    "write": (write, "INSERT of the table tests_effect"),
    "transaction": (write_in_a_transaction, "INSERT of the table tests_effect"),
    "change": (change, "UPDATE of the table tests_effect"),
    "delete": (delete, "DELETE of the table tests_effect"),
    "call": (call, "the call of a task"),
    "calls": (call_many, "the call of a task"),
    "signal": (send, "a signal"),
    "mail": (send_mail, "the mail 'Welcome'"),
    "cache": (lambda: cache.set("a", 1), r"set\(\) of a cache"),
}


@shared_task(bind=True, durable=True, name="tests.durable.outside")
def outside(self, name: str):
    self.step("before", write)
    EFFECTS[name][0]()


@shared_task(bind=True, durable=True, name="tests.durable.inside")
def inside(self, name: str, **options):
    # What returns something else than JSON is no step.
    self.step("it", lambda: EFFECTS[name][0]() and None, **options)
    self.gather([tasks.effect.s("child")])
    self.wait_for("after")


@shared_task(bind=True, durable=True, name="tests.durable.async_outside")
async def async_outside(self, name: str):
    await self.astep("before", write)
    await sync_to_async(EFFECTS[name][0])()


def state_of(result) -> str:
    return Job.objects.get(pk=result.id).state


@pytest.mark.parametrize("body", [outside, async_outside])
@pytest.mark.parametrize("name", EFFECTS)
def test_each_is_found_outside_of_steps(name, body):
    text = f"{EFFECTS[name][1]} outside of the steps of a durable task: it happens again at each wake. Cure: do it in a"
    result = body.delay(name)
    with isolation(), pytest.raises(NotIsolated, match=text):
        run_jobs()
    assert state_of(result) == "failed"
    # It was found before it happened.
    assert [effect.key for effect in Effect.objects.all()] == ["a"]
    assert (Job.objects.count(), Signal.objects.count(), len(mail.outbox)) == (1, 0, 0)


@pytest.mark.parametrize("name", ["write", "call"])
def test_a_warning_says_the_same(name):
    outside.delay(name)
    with isolation("warn"), pytest.warns(NotIsolatedWarning, match=f"{EFFECTS[name][1]} outside of the steps"):
        run_jobs()
    assert Effect.objects.count() == 2


def test_the_setting_watches_as_well(settings):
    settings.JOBS = {**settings.JOBS, "ISOLATION": "raise"}
    outside.delay("write")
    with isolation(None):
        run_jobs()
    outside.delay("write")
    with pytest.raises(NotIsolated):
        run_jobs()


@pytest.mark.parametrize("name", ["write", "change", "call", "calls", "signal"])
def test_in_a_step_all_is_right_and_what_the_history_writes_too(name):
    result = inside.delay(name)
    with isolation():
        run_jobs()
    assert state_of(result) == "scheduled"


@pytest.mark.parametrize("allow", ["database", "tests.durable.*"])
def test_what_is_allowed_is_right(allow):
    outside.delay("write")
    with isolation(allow=[allow]):
        run_jobs()


def test_a_call_is_allowed_by_its_kind():
    outside.delay("call")
    with isolation(allow=["call"]):
        run_jobs()
    assert Effect.objects.filter(key="called").exists()


def test_what_leaves_is_a_step_with_effect():
    inside.delay("mail")
    with (
        isolation(),
        pytest.raises(NotIsolated, match="inside of a transaction.*make it a step of its own, with effect=True"),
    ):
        run_jobs()
    result = inside.delay("mail", effect=True)
    with isolation():
        run_jobs()
    assert state_of(result) == "scheduled"
    assert len(mail.outbox) == 1


def test_a_plain_call_makes_no_job_and_is_not_watched():
    with isolation():
        outside.run("write")
    assert Effect.objects.count() == 2


def test_after_the_body_nothing_is_watched():
    outside.delay("write")
    with isolation():
        with pytest.raises(NotIsolated):
            run_jobs()
        write()
        tasks.effect.delay("k")
        run_jobs()


@pytest.mark.parametrize("body", [outside, async_outside])
def test_a_wrapper_around_the_run_is_left_as_it_was(body):
    def mine(execute, *given):
        return execute(*given)

    body.delay("write")
    with connection.execute_wrapper(mine), isolation("warn"):
        with pytest.warns(NotIsolatedWarning):
            run_jobs()
        assert connection.execute_wrappers == [mine]
    assert connection.execute_wrappers == []
