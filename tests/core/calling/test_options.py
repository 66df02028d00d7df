"""Options of a declaration and of a call: a value that cannot work is refused; and what a task's body may be."""

from __future__ import annotations

import datetime
import functools

import celery
import django.conf
import pytest
from celery import current_app

from jobs import Task
from jobs.conf import is_eager
from jobs.models import Job
from tests import tasks

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_crashes": "3"}, "max_crashes='3' must be a whole number above 0"),
        ({"unique": "k", "unique_until": True}, "unique_until=True must be 'started' or 'finished'"),
        ({"unique_for": 5}, "unique_for=5 needs unique="),
    ],
)
def test_a_value_that_cannot_work_is_told_where_it_is_declared(declare, options, text):
    with pytest.raises((TypeError, ValueError), match=text):
        declare(**options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"eta": "tomorrow"}, "eta='tomorrow' must be a datetime, a number of seconds from now, or text such as"),
        ({"queue": "q" * 256}, "must be a name of at most 255 characters"),
        ({"queue": "q\0"}, "none of them NUL"),
        ({"priority": 2**15}, "priority=32768 must be from -32768 to 32767"),
    ],
)
def test_a_value_that_cannot_work_is_told_at_the_call(options, text):
    with pytest.raises((TypeError, ValueError), match=text):
        tasks.effect.apply_async(("a",), **options)
    with pytest.raises((TypeError, ValueError), match=text):
        tasks.effect.delay_many([("a",)], **options)
    assert not Job.objects.exists()


def test_an_eta_may_be_text():
    tasks.effect.apply_async(("a",), eta="2031-01-02T03:04:05Z")
    assert Job.objects.get().run_at == datetime.datetime(2031, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)


@pytest.mark.parametrize("namespace", ["CELERY", "TASKS"])
def test_a_test_switches_eager_calls_whenever_it_likes(settings, namespace):
    app = celery.Celery("eager", set_as_current=False)
    app.config_from_object("django.conf:settings", namespace=namespace)
    assert not is_eager(app)
    setattr(settings, f"{namespace}_TASK_ALWAYS_EAGER", True)
    assert is_eager(app)
    delattr(settings, f"{namespace}_TASK_ALWAYS_EAGER")
    assert not is_eager(app)
    for value in True, False:
        app.conf.task_always_eager = value
        assert is_eager(app) is value


def test_eager_calls_are_switched_without_a_signal_too(monkeypatch):
    app = celery.Celery("eager", set_as_current=False)
    app.config_from_object("django.conf:settings", namespace="CELERY")
    assert not is_eager(app)
    monkeypatch.setattr(django.conf.settings, "CELERY_TASK_ALWAYS_EAGER", True, raising=False)
    assert is_eager(app)
    monkeypatch.undo()
    assert not is_eager(app)
    app.config_from_object({"task_always_eager": True})
    assert is_eager(app)


BODIES = (
    lambda self, x: x,
    staticmethod(lambda x: x),
    classmethod(lambda cls, x: x),
    functools.partialmethod(lambda self, n, x: x, 5),
)


@pytest.mark.parametrize("run", BODIES)
def test_a_body_may_be_any_kind_of_method(run):
    name = "tests.any_method"
    task = current_app.register_task(type("Body", (Task,), {"name": name, "run": run, "unique": "any:{x}"})())
    try:
        assert (str(task.body_signature), task(3)) == ("(x)", 3)
    finally:
        current_app.tasks.unregister(name)
