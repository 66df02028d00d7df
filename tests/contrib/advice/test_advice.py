"""Warnings of settings that are allowed, and seldom meant."""

from __future__ import annotations

import datetime

import celery
import pytest
from celery import Celery
from django.core.checks import run_checks
from django.db import connections

from jobs import conf as project
from jobs import store
from jobs.conf import conf, problems
from jobs.contrib.checks import system as checks
from tests.helpers.checked import Router, app, body, ids, worker

pytestmark = pytest.mark.usefixtures("only_their_own_tasks")


@pytest.mark.parametrize(
    ("url", "settings", "text"),
    [
        ("memory://", {"broker_connection_max_retries": 100}, "broker_connection_max_retries = 100"),
        ("memory://", {"broker_connection_retry": False}, "broker_connection_retry = False"),
        ("memory://", {"broker_connection_retry_on_startup": False}, "retry_on_startup = False"),
        ("amqp://", {"broker_channel_error_retry": False}, "broker_channel_error_retry = False"),
    ],
)
def test_a_setting_of_celery_that_ends_a_worker(url, settings, text):
    found = checks.check_celery(app(url, **settings))
    assert ids(found) == ["jobs.W008"]
    assert text in found[0].msg
    assert checks.for_worker(worker(app(url, **settings))) == found


def test_a_setting_for_another_broker_harms_nobody():
    assert checks.check_celery(app("redis://localhost", broker_channel_error_retry=False)) == []


def test_the_defaults_of_celery_are_warnings_and_no_errors():
    plain = Celery("plain", broker="amqp://", task_cls="jobs.task:Task", set_as_current=False, fixups=[])
    found = checks.check_celery(plain)
    assert ids(found) == ["jobs.W008"]
    assert not any(message.is_serious() for message in found)


def test_jobs_that_live_apart_from_the_data(settings):
    settings.DATABASE_ROUTERS = [Router(dict.fromkeys(("shop", "loyalty", "tests"), "data"))]
    [message] = checks.check_settings()
    assert (message.id, "(data)" in message.hint) == ("jobs.W003", True)
    # Some other data may well be elsewhere.
    settings.DATABASE_ROUTERS = [Router({"shop": "data"})]
    assert checks.check_settings() == []


def test_another_isolation_level(settings, monkeypatch):
    monkeypatch.setattr(connections["default"], "vendor", "postgresql")
    monkeypatch.setattr(store, "of", store.of.__wrapped__)
    for level, expected in ((None, []), (2, []), (3, ["jobs.W004"]), (4, ["jobs.W004"])):
        monkeypatch.setitem(settings.DATABASES["default"]["OPTIONS"], "isolation_level", level)
        assert ids(checks.check_settings()) == expected


def test_a_retention_of_days_that_are_seconds(settings):
    settings.JOBS = {**settings.JOBS, "RETENTION": 7, "MARKER_RETENTION": datetime.timedelta(days=90)}
    [message] = checks.check_settings()
    assert (message.id, "timedelta(days=7)" in message.hint) == ("jobs.W018", True)
    assert ids(checks.for_worker(worker())) == ["jobs.W018"]
    assert conf().MARKER_RETENTION == 90 * 86400
    settings.JOBS = {**settings.JOBS, "RETENTION": datetime.timedelta(days=7)}
    assert ids(checks.check_settings()) == []
    settings.JOBS = {**settings.JOBS, "RETENTION": "7 days"}
    assert any("in seconds, or a timedelta" in text for text in problems())


def test_tasks_without_a_time_limit():
    own = app(task_time_limit=None, task_soft_time_limit=None)
    for number in range(7):
        own.task(name=f"t.{number}")(body)
    own.task(name="t.limited", time_limit=60)(body)
    own.task(name="t.stock", base=celery.Task)(body)
    [message] = checks.for_worker(worker(own))
    assert (message.id, "t.0, t.1, t.2, t.3, t.4 and 2 more" in message.msg) == ("jobs.W011", True)
    assert checks.for_worker(worker(own, time_limit=900)) == [], "celery worker --time-limit"
    threads = worker(own, pool_cls="celery.concurrency.thread:TaskPool")
    assert checks.for_worker(threads) == [], "has no time limits at all"


def test_options_that_have_no_effect(settings):
    own = Celery("stock", set_as_current=False, fixups=[])
    own.task(name="t.keyed", unique="k:{user_id}", lock="l:{user_id}")(body)
    own.task(name="t.plain", rate_limit=3)(body)
    own.task(name="t.left", unique="k:{user_id}")(body)
    settings.JOBS = {"EXCLUDE": ["t.left"], "TASKS": {"t.pla*": {"atomic": False}, "mail.*": {"atomic": False}}}
    said = {message.id: message.msg for message in checks.check_tasks(own)}
    assert said.keys() == {"jobs.W001", "jobs.W033", "jobs.W034"}
    assert "there: t.keyed (lock, unique)." in said["jobs.W033"]
    assert "for mail.*, and no task" in said["jobs.W034"]


def test_options_that_cannot_work():
    own = app()
    own.task(name="t.fine", max_retries=0, retry_backoff=True, soft_time_limit=5, time_limit=6)(body)
    own.task(name="t.soft_only", soft_time_limit=5)(body)
    own.task(name="t.never", max_retries=-1)(body)
    own.task(name="t.soft", soft_time_limit=60, time_limit=60)(body)
    [message] = checks.check_tasks(own)
    assert message.id == "jobs.W035"
    assert "say: t.never (max_retries=-1), t.soft (soft_time_limit=60, time_limit=60)." in message.msg


def test_markers_that_are_gone_too_soon(settings):
    def keyed(user_id: int) -> None:
        pass

    own = app()
    task = own.task(name="t.marked", idempotency_key="k:{user_id}", max_retries=10, default_retry_delay=3600)(keyed)
    assert checks.for_worker(worker(own)) == []
    settings.JOBS = {"MARKER_RETENTION": 86400.0, "RETENTION_FAILED": 3600.0}
    assert checks.for_worker(worker(own)) == []
    task.max_retries = 25
    [message] = checks.for_worker(worker(own))
    assert (message.id, "t.marked" in message.msg) == ("jobs.W017", True)
    task.max_retries = None
    assert ids(checks.for_worker(worker(own))) == ["jobs.W017"], "for ever"
    task.max_retries = 3
    settings.JOBS = {"MARKER_RETENTION": 86400.0}
    assert ids(checks.for_worker(worker(own))) == ["jobs.W017"], "failed jobs can be replayed for 30 days"
    settings.JOBS = {"MARKER_RETENTION": None, "RETENTION_FAILED": None}
    assert checks.for_worker(worker(own)) == []


@pytest.mark.parametrize(
    ("pool", "more", "expected"),
    [
        (None, {}, []),
        (True, {}, []),
        ({"min_size": 1, "max_size": 2}, {}, []),
        ({"min_size": 1}, {}, ["jobs.W032"]),
        ({"min_size": 1, "max_size": 1}, {}, ["jobs.W032"]),
        (True, {"pool_cls": "celery.concurrency.thread:TaskPool", "concurrency": 3}, []),
        (True, {"pool_cls": "celery.concurrency.thread:TaskPool", "concurrency": 4}, ["jobs.W032"]),
        ({"max_size": 2}, {"pool_cls": "celery.concurrency.solo:TaskPool", "concurrency": 1}, []),
    ],
)
def test_a_pool_of_too_few_connections_is_named(settings, monkeypatch, pool, more, expected):
    """Each process has one of its own, and each thread that runs jobs keeps a connection."""
    database = settings.DATABASES["default"]
    monkeypatch.setitem(database, "OPTIONS", {**database.get("OPTIONS", {}), "pool": pool})
    assert ids(checks.for_worker(worker(**more))) == expected


def test_events_need_no_connection_more(settings, monkeypatch):
    """Their threads are the supervisor's, which takes none of a pool."""
    database = settings.DATABASES["default"]
    monkeypatch.setitem(database, "OPTIONS", {**database.get("OPTIONS", {}), "pool": {"max_size": 2}})
    settings.JOBS = {**settings.JOBS, "SERVICE": "shop", "EVENT_BROKER": "amqp://localhost//"}
    assert checks.check_settings() == []


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (
            "postgres://ada:secret@localhost/shop",
            "'postgres://ada:**@localhost/shop' names no transport that there is.",
        ),
        ("redis:/localhost", "'redis:/localhost' names no transport that there is: did you mean `redis://`?"),
        ("rediss:/x", "did you mean `rediss://`?"),
        ("amqp://localhost;reds://localhost", "did you mean `redis`?"),
    ],
)
def test_a_broker_url_without_a_transport_is_told_before_any_worker_starts(monkeypatch, url, says):
    own = app(url)
    monkeypatch.setattr(project, "celery_app", lambda: own)
    [message] = run_checks(tags=["jobs"])
    assert (message.id, checks.for_worker(worker(own))) == ("jobs.E017", [message])
    assert says in message.msg


@pytest.mark.parametrize(
    "url", ["localhost", "localhost:5672//", "pyamqp://", "sqs://", "redis+socket:///x", "a.b:C://"]
)
def test_a_broker_url_that_kombu_understands_is_left_alone(url):
    assert "jobs.E017" not in ids(checks.check_celery(app(url)))
