"""A typo does not run: not in a task's declaration, and not in a call; and a value that cannot work does not either."""

from __future__ import annotations

import datetime
import re

import pytest
from asgiref.sync import async_to_sync
from celery import current_app, group
from celery.canvas import StampingVisitor

from jobs import Task
from jobs.contrib.typos import options as known
from jobs.models import Job
from tests import tasks
from tests.helpers.harness import deliver

pytestmark = pytest.mark.django_db(transaction=True)


# Where a task is declared


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        ({"uniqe": "k"}, "unique"),
        ({"idempotency_keys": "k"}, "idempotency_key"),
        ({"atomc": False}, "atomic"),
        ({"max_retrys": 5}, "max_retries"),
        ({"autoretry_on": (OSError,)}, "autoretry_for"),
        ({"soft_timelimit": 5}, "soft_time_limit"),
        ({"que": "mail"}, "queue"),
    ],
)
def test_a_typo_in_a_declaration_names_what_was_meant_and_takes_no_call(declare, options, meant):
    [given] = options
    with pytest.raises(TypeError, match=f"{given}= is no option of a task: did you mean `{meant}`"):
        declare(name="tests.wrong", **options)
    with pytest.raises(TypeError, match=f"tests.wrong: {given}="):
        current_app.tasks["tests.wrong"].delay()
    assert not Job.objects.exists()


def test_an_option_like_no_other_names_where_it_may_be_declared(declare):
    with pytest.raises(TypeError, match=re.escape("colour= is no option of a task. What other code reads of a task")):
        declare(colour="blue")


def test_what_other_code_reads_is_declared_in_the_settings(declare, settings):
    settings.JOBS = {**settings.JOBS, "TASK_OPTIONS": ["colour"]}
    assert declare(colour="blue").colour == "blue"
    tasks.effect.apply_async(("a",), colour="blue")


def test_a_base_class_knows_options_of_its_own(declare):
    class Base(Task):
        abstract = True
        colour = "red"
        shade: str

        @classmethod
        def on_bound(cls, app):
            cls.made_here = True
            super().on_bound(app)

        def weigh(self): ...

    task = declare(Base, colour="blue", shade="dark", weigh=len, on_failure=print, _private=1)
    assert (task.colour, task.shade, task._private, task.made_here) == ("blue", "dark", 1, True)


def test_a_class_has_what_attributes_it_likes():
    class Classy(Task):
        name = "tests.classy"
        colour = "blue"

    try:
        current_app.register_task(Classy())
    finally:
        current_app.tasks.pop("tests.classy", None)


def test_a_task_that_is_left_to_celery_is_not_asked(declare, settings):
    settings.JOBS = {**settings.JOBS, "EXCLUDE": ["tests.legacy"]}
    assert declare(name="tests.legacy", colour="blue").colour == "blue"


@pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")
@pytest.mark.parametrize("name", sorted({*known.OF_A_TASK, *known.OTHERS} - {"name", "abstract", "backend"}))
def test_each_option_of_celery_and_of_known_packages_may_be_declared(declare, name):
    values = {"autoretry_for": (OSError,), "dont_autoretry_for": (OSError,), "throws": (OSError,), "retry_kwargs": {}}
    values |= {"unique_until": "finished", "atomic": True}
    values |= {"typing": True, "unique": "k", "idempotency_key": "k"}
    more = {"unique_for": {"unique": "k"}}.get(name, {})
    declare(**{name: values.get(name, True if name == "retry_jitter" else 5)}, **more)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"atomic": "no"}, "atomic='no' must be True or False"),
        ({"unique": "k", "unique_for": "60"}, "unique_for='60' must be a number of seconds"),
        ({"unique": "k", "unique_for": datetime.timedelta(seconds=30)}, r"\(of a timedelta: .total_seconds\(\)\)"),
        ({"autoretry_for": OSError}, r"a tuple of exception classes, \(ConnectionError,\)"),
        ({"autoretry_for": ("OSError",)}, "a tuple of exception classes"),
        ({"max_retries": "5"}, "max_retries='5' must be a whole number"),
        ({"retry_backoff": "yes"}, "must be True, False, or a number of seconds"),
        ({"default_retry_delay": "1m"}, "must be a number of seconds"),
        ({"time_limit": "60"}, "time_limit='60' must be a number of seconds"),
    ],
)
def test_a_value_that_cannot_work_is_told_where_it_is_declared(declare, options, text):
    with pytest.raises((TypeError, ValueError), match=text):
        declare(**options)


# Where a task is called

TYPOS = {"contdown": "countdown", "que": "queue", "expire": "expires", "prioritiy": "priority", "ussing": "using"}


@pytest.mark.parametrize("name", TYPOS)
def test_a_typo_in_a_call_names_what_was_meant(name):
    says = f"{name}= is no option of a call: did you mean `{TYPOS[name]}`"
    with pytest.raises(TypeError, match=says):
        tasks.effect.apply_async(("a",), **{name: 5})
    with pytest.raises(TypeError, match=says):
        tasks.effect.delay_many([("a",)], **{name: 5})
    with pytest.raises(TypeError, match=says):
        tasks.effect.s("a").set(**{name: 5}).delay()
    assert not Job.objects.exists()


def test_a_typo_in_an_async_call_names_what_was_meant():
    with pytest.raises(TypeError, match="did you mean `countdown`"):
        async_to_sync(tasks.effect.aapply_async)(("a",), contdown=5)


def test_a_typo_is_told_also_where_tasks_run_in_their_caller(monkeypatch):
    monkeypatch.setitem(current_app.conf, "task_always_eager", True)
    with pytest.raises(TypeError, match="did you mean `countdown`"):
        tasks.noop.apply_async(contdown=5)


@pytest.mark.parametrize("name", ["max_retries", "atomic", "unique", "unique_for", "idempotency_key"])
def test_an_option_of_the_task_is_none_of_a_call(name):
    with pytest.raises(TypeError, match=f"{name}= is an option of the task, where it is declared"):
        tasks.effect.apply_async(("a",), **{name: 5})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"eta": "tomorrow"}, "eta='tomorrow' must be a datetime, a number of seconds from now, or text such as"),
        ({"expires": "x"}, "expires='x' must be a datetime, a number of seconds"),
        ({"expires": object()}, "expires=.* must be a datetime"),
        ({"expires": datetime.timedelta(1)}, "must be a datetime, a number of seconds"),
        ({"countdown": "5"}, "countdown='5' must be a number of seconds"),
        ({"countdown": datetime.timedelta(1)}, r"\.total_seconds\(\)"),
        ({"queue": 5}, "queue=5 must be the name of a queue"),
        ({"priority": "high"}, "priority='high' must be a whole number"),
        ({"time_limit": "60"}, "time_limit='60' must be a number of seconds"),
        ({"headers": [1]}, "must be a dict"),
    ],
)
def test_a_value_that_cannot_work_is_told_at_the_call(options, text):
    with pytest.raises((TypeError, ValueError), match=text):
        tasks.effect.apply_async(("a",), **options)
    with pytest.raises((TypeError, ValueError), match=text):
        tasks.effect.delay_many([("a",)], **options)
    assert not Job.objects.exists()


class Visitor(StampingVisitor):
    def on_signature(self, sig, **headers):
        return {"tenant": "a", "stamped_headers": ["tenant"]}


def test_stamps_are_no_typos():
    tasks.effect.s("a").stamp(monitoring_id="m").apply_async()
    stamped = group(tasks.effect.s("b"), tasks.effect.s("c"))
    stamped.stamp(Visitor())
    stamped.apply_async()
    assert Job.objects.count() == 3


def test_what_celery_and_its_schedulers_pass_is_no_typo():
    """celery.beat, django-celery-beat, celery-once."""
    tasks.effect.apply_async(("a",), producer=None, periodic_task_name="nightly", once={"keys": ["key"]})
    tasks.effect.apply_async(("b",), **dict.fromkeys(known.OF_A_CALL - {"using"}))
    assert Job.objects.count() == 2


def test_a_typo_in_a_retry_fails_the_job(node):
    def body(self):
        self.retry(contdown=5)

    try:
        deliver(current_app._task_from_fun(body, name="tests.retries_wrongly", base=Task, bind=True).delay())
    finally:
        current_app.tasks.pop("tests.retries_wrongly")
    job = Job.objects.get()
    assert (job.state, "did you mean `countdown`" in job.error["message"]) == ("failed", True)


def test_a_name_that_no_row_holds_is_refused_where_it_is_declared(declare):
    with pytest.raises(ValueError, match="longer than 255 characters"):
        declare(name="x" * 256)
    declare(name="x" * 255)
