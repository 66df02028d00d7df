"""Stock tasks among jobs, and settings of Celery that harm, as the checks say it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import celery
import pytest
from celery import Celery
from celery.contrib.django.task import DjangoTask

from jobs.conf import celery_settings
from jobs.contrib.checks import system as checks
from jobs.task import Task
from tests.helpers.checked import Plain, app, body, ids, worker


def test_an_app_whose_tasks_are_stock(only_their_own_tasks):
    plain = Celery("plain", set_as_current=False, fixups=[])
    plain.conf.update(celery_settings())
    assert ids(checks.for_worker(worker(plain))) == ["jobs.W001"]


def test_no_task_of_a_project_is_a_job_and_no_worker_has_to_start_to_say_so(settings, only_their_own_tasks):
    plain = Celery("plain", set_as_current=False, fixups=[])
    plain.conf.update(celery_settings())
    assert ids(checks.check_tasks(plain)) == []
    plain.task(name="t.first")(body)
    assert ids(checks.check_tasks(plain)) == ["jobs.W001"]
    assert ids(checks.for_worker(worker(plain))) == ["jobs.W001"]
    plain.task(name="t.second", base=Task)(body)
    assert ids(checks.check_tasks(plain)) == []
    settings.JOBS = {**settings.JOBS, "EXCLUDE": ["t.first"]}
    assert ids(checks.for_worker(worker(plain))) == ["jobs.W001"]


class Classy(celery.Task):
    name = "t.classy"


class Mixed(Plain, Task):
    """As it should be."""

    abstract = True


def test_tasks_that_stay_stock_by_mistake(settings):
    own = app()
    own.task(name="t.plain", base=Plain)(body)
    own.task(name="t.mixed", base=Mixed)(body)
    own.task(name="t.stock", base=celery.Task)(body)
    own.task(name="t.django", base=DjangoTask)(body)
    own.register_task(Classy())
    [message] = checks.for_worker(worker(own))
    assert (message.id, message.msg.endswith("is not: t.classy, t.plain.")) == ("jobs.W021", True)
    settings.JOBS = {"EXCLUDE": ["t.classy", "t.p*"]}
    assert checks.for_worker(worker(own)) == []


@pytest.mark.parametrize(
    ("url", "settings", "text"),
    [
        ("memory://", {"worker_prefetch_multiplier": 4}, "worker_prefetch_multiplier"),
        ("memory://", {"task_acks_late": None, "task_reject_on_worker_lost": True}, "reject_on_worker_lost"),
        ("redis://", {"broker_transport_options": {"visibility_timeout": 60}}, "visibility_timeout"),
    ],
)
def test_a_setting_for_messages_that_does_nothing_for_jobs(url, settings, text):
    for found in (checks.check_celery(app(url, **settings)), checks.for_worker(worker(app(url, **settings)))):
        assert [text in each.msg for each in found if each.id == "jobs.W019"] == [True]


@pytest.mark.slow
def test_a_package_whose_task_needs_an_option(monkeypatch, settings):
    assert checks.check_celery(app()) == []
    monkeypatch.setitem(sys.modules, "post_office.tasks", SimpleNamespace(send_queued_mail=body))
    [message] = checks.check_celery(app())
    assert ids([message]) == ["jobs.W020"]
    assert "JOBS = {'TASKS': {'post_office.*': {'atomic': False}}}" in message.hint
    for given in ({"TASKS": {"post_office.*": {"atomic": False}}}, {"EXCLUDE": ["post_office.*"]}):
        settings.JOBS = given
        assert checks.check_celery(app()) == []
    settings.JOBS = {}
    plain = Celery("plain", broker="memory://", set_as_current=False, fixups=[])
    assert "jobs.W020" not in ids(checks.check_celery(plain))
