"""System checks: each says what it should, with a cure, and nothing is said about our own settings."""

from __future__ import annotations

import json
import subprocess
import sys
from threading import Event

import celery
import pytest
from celery import Celery, current_app
from django.core.checks import run_checks
from django.db import connection, connections

from jobs import conf as project
from jobs import store
from jobs.conf import celery_settings
from jobs.contrib.checks import system as checks
from jobs.contrib.checks.doors import Checks
from tests.helpers.checked import Router, app, body, ids, worker
from tests.helpers.harness import ROOT, environment

pytestmark = pytest.mark.usefixtures("only_their_own_tasks")


# What is well


@pytest.mark.parametrize("url", ["redis://localhost/0", "rediss://localhost/0", "amqp://localhost//"])
def test_nothing_is_said_about_our_own_settings(url):
    own = app(url)

    own.task(name="t.job")(body)
    own.task(name="t.stock", base=celery.Task)(body)
    assert checks.check_celery(own) == []
    assert checks.for_worker(worker(own)) == []


def test_nothing_is_said_about_the_example():
    assert [message for message in run_checks() if message.id.startswith("jobs.")] == []


# Celery's settings


def test_a_setting_of_celery_that_harms():
    found = checks.check_celery(app(task_always_eager=True))
    assert ids(found) == ["jobs.W002"]
    assert "in their caller" in found[0].msg
    assert checks.for_worker(worker(app(task_always_eager=True))) == found


def test_manage_py_check_looks_at_the_project_app(monkeypatch):
    monkeypatch.setattr(project, "celery_app", lambda: app(task_always_eager=True))
    assert "jobs.W002" in ids(run_checks(tags=["jobs"]))
    monkeypatch.setattr(project, "celery_app", lambda: None)
    assert ids(run_checks(tags=["jobs"])) == ["jobs.W016"]


# Databases


def test_jobs_that_are_routed_out_of_their_databases(settings):
    settings.DATABASE_ROUTERS = [Router({"jobs": "elsewhere"})]
    [message] = checks.check_routing()
    assert (message.id, "'elsewhere'" in message.msg, "'elsewhere'" in message.hint) == ("jobs.E005", True, True)
    assert "jobs.E005" in ids(checks.for_worker(worker()))


def test_tables_that_the_routers_keep_out(settings):
    settings.DATABASE_ROUTERS = [Router({}, kept_out=("default",))]
    assert ids(checks.check_routing()) == ["jobs.E006"]


def test_a_database_that_does_not_commit(settings, monkeypatch):
    monkeypatch.setitem(settings.DATABASES["default"], "AUTOCOMMIT", False)
    assert ids(checks.check_databases()) == ["jobs.E007"]


@pytest.mark.parametrize(("zone", "found"), [("Europe/Berlin", ["jobs.E025"]), ("UTC", []), (None, [])])
def test_a_database_with_a_time_zone_of_its_own(settings, monkeypatch, zone, found):
    monkeypatch.setitem(settings.DATABASES["default"], "TIME_ZONE", zone)
    assert ids(checks.check_databases()) == ([] if connection.features.supports_timezones else found)


def test_naive_times(settings):
    settings.USE_TZ = False
    assert ids(checks.check_settings()) == ["jobs.E004"]


def test_unusable_settings_are_said_once(settings):
    settings.JOBS = {"RELAI": 1}
    assert ids(checks.for_worker(worker())) == ["jobs.E001"]


# Workers


@pytest.mark.parametrize(
    ("expected", "more"),
    [
        ("jobs.E003", {"pool_cls": "celery.concurrency.gevent:TaskPool"}),
        ("jobs.E003", {"pool_cls": "celery.concurrency.eventlet"}),
        ("jobs.E011", {"pool_start_method": "spawn"}),
    ],
)
def test_an_option_of_a_worker_that_harms(expected, more):
    assert ids(checks.for_worker(worker(**more))) == [expected]


def test_a_task_that_cannot_be_declared_is_an_error_of_manage_py_check(monkeypatch):
    """The command need not have imported the tasks."""
    own = app()
    monkeypatch.setattr(project, "celery_app", lambda: own)
    assert ids(checks.check_tasks()) == []

    def declare():
        own.task(name="t.misspelt", concurency=2)(body)

    project._imported.discard(own)
    monkeypatch.setattr(own.loader, "import_default_modules", declare)
    [message] = checks.check_tasks()
    assert message.id == "jobs.E019"
    assert "concurency" in message.msg


def test_the_checks_import_the_tasks_once(monkeypatch):
    """Celery's fixup for Django runs all checks each time before it imports, and one of them imports."""
    loader, seen = current_app.loader, []
    load = loader.import_default_modules
    monkeypatch.setattr(loader, "import_default_modules", lambda: (seen.append(1), load()))
    project._imported.clear()
    run_checks()
    run_checks()
    assert len(seen) == 1


def test_the_options_of_tasks_are_checked_without_a_worker(monkeypatch):
    own = app()
    own.task(name="t.pickled", serializer="pickle")(body)
    monkeypatch.setattr(project, "celery_app", lambda: own)
    assert ids(checks.check_tasks()) == ["jobs.E010"]


def test_a_database_in_memory(settings, monkeypatch):
    monkeypatch.setitem(settings.DATABASES["default"], "ENGINE", "django.db.backends.sqlite3")
    monkeypatch.setitem(settings.DATABASES["default"], "NAME", "file:memorydb?mode=memory&cache=shared")
    monkeypatch.setitem(settings.DATABASES["default"], "OPTIONS", {"transaction_mode": "IMMEDIATE"})
    assert ids(checks.for_worker(worker())) == ["jobs.E012"]
    # Django's tests run on such ones.
    assert [message for message in run_checks() if message.id.startswith("jobs.")] == []


def test_tasks_with_another_serializer():
    own = app(accept_content=["json", "pickle"])
    own.task(name="t.odd", serializer="pickle")(body)
    own.task(name="t.even", serializer="json")(body)
    own.task(name="t.stock", base=celery.Task)(body)
    [message] = checks.for_worker(worker(own))
    assert (message.id, "raise: t.odd." in message.msg) == ("jobs.E010", True)


def test_a_serializer_that_jobs_cannot_use_is_told_before_any_worker_starts(monkeypatch):
    own = app(task_serializer="pickle")
    own.task(name="t.odd")(body)
    monkeypatch.setattr(project, "celery_app", lambda: own)
    assert ids(run_checks(tags=["jobs"])) == ids(checks.for_worker(worker(own))) == ["jobs.E016"]
    plain = Celery("plain", set_as_current=False, fixups=[])
    plain.conf.update({**celery_settings("memory://"), "task_serializer": "pickle"})
    assert checks.check_celery(plain) == [], "its tasks are stock"


def test_processes_that_are_not_forked_matter_to_prefork_only():
    threads = worker(pool_cls="celery.concurrency.thread:TaskPool", pool_start_method="spawn")
    assert checks.for_worker(threads) == []


def test_a_mysql_that_cannot_skip_locked_rows(monkeypatch):
    monkeypatch.setattr(connections["default"], "vendor", "mysql")
    # Not the one that is kept for the alias.
    monkeypatch.setattr(store, "of", store.of.__wrapped__)
    for can, expected in ((True, []), (False, ["jobs.E015"])):
        monkeypatch.setattr(connections["default"].features, "has_select_for_update_skip_locked", can)
        assert ids(checks.check_worker(worker())) == expected


def test_a_check_that_was_silenced_is_silent(settings):
    settings.SILENCED_SYSTEM_CHECKS = ["jobs.W002"]
    assert checks.for_worker(worker(app(task_always_eager=True))) == []


def test_a_check_that_fails_stops_nobody_and_keeps_what_it_found(monkeypatch):
    monkeypatch.setattr(checks, "OF_APP", [lambda app: 1 / 0])
    found = checks.check_celery(app(task_always_eager=True))
    assert ids(found) == ["jobs.W002", "jobs.W015"]
    assert "ZeroDivisionError" in found[1].msg


def test_a_setting_of_an_app_that_is_not_installed_is_an_error(settings, monkeypatch):
    """jobs.E021: nothing would read it."""
    settings.JOBS = {**settings.JOBS, "BATCH": 100, "REDACT": None}
    monkeypatch.setattr(checks, "unread_settings", lambda: dict.fromkeys(["BATCH", "REDACT"], "a.b"))
    [message] = checks.check_settings()
    assert (message.id, "Add 'a.b' to INSTALLED_APPS" in message.hint) == ("jobs.E021", True)


# A worker that starts


@pytest.mark.slow
def test_a_worker_refuses_unknown_settings():
    command = [sys.executable, "-m", "celery", "-A", "shop", "worker", "-l", "INFO", "-c", "1"]
    env = environment(JOBS_TEST_SETTINGS=json.dumps({"RELAI": 1}))
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "jobs.E001" in done.stdout + done.stderr
    assert "RELAI" in done.stdout + done.stderr


def test_the_supervisor_asks_the_databases_once_and_says_what_is_wrong(monkeypatch, caplog):
    monkeypatch.setattr(checks, "OF_DATABASE", [lambda alias: [checks.say("W015", check=alias, exc="no")]])
    [run] = Checks().threads()
    stopping, asked = Event(), []

    def attempt(step):
        step()
        asked.append(step)
        stopping.set()
        return True

    run(stopping, attempt)
    assert len(asked) == 1
    assert "jobs.W015" in [record.check for record in caplog.records if record.action == "check"]


@pytest.mark.skipif(connection.vendor != "sqlite", reason="SQLite's own")
def test_a_worker_refuses_sqlite_without_immediate_transactions(settings):
    database = settings.DATABASES["default"]
    options = database["OPTIONS"]
    settings.DATABASES = {"default": {**database, "OPTIONS": {**options, "transaction_mode": "DEFERRED"}}}
    assert "jobs.E002" in {message.id for message in run_checks()}
    settings.DATABASES = {"default": database}
    assert "jobs.E002" not in {message.id for message in run_checks()}
