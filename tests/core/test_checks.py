"""System checks: each says what it should, with a cure, and nothing is said about our own settings."""

from __future__ import annotations

import datetime

import celery
import pytest
from celery import Celery, _state, current_app
from django.core.checks import run_checks
from django.db import connections

from jobs import checks, extensions
from jobs import conf as project
from jobs.conf import celery_settings, conf, private, problems
from tests.helpers.checked import app, body, ids, worker


@pytest.fixture(autouse=True)
def _only_their_own_tasks(monkeypatch):
    """The apps made here do not share the tasks of other tests."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set())
    # Celery prefers it to any setting.
    monkeypatch.delenv("CELERY_BROKER_URL", raising=False)


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


@pytest.mark.parametrize(
    ("expected", "url", "settings", "text"),
    [
        ("jobs.W002", "memory://", {"task_always_eager": True}, "in their caller"),
        ("jobs.W008", "memory://", {"broker_connection_max_retries": 100}, "broker_connection_max_retries = 100"),
        ("jobs.W008", "memory://", {"broker_connection_retry": False}, "broker_connection_retry = False"),
        ("jobs.W008", "memory://", {"broker_connection_retry_on_startup": False}, "retry_on_startup = False"),
        ("jobs.W008", "amqp://", {"broker_channel_error_retry": False}, "broker_channel_error_retry = False"),
    ],
)
def test_a_setting_of_celery_that_harms(expected, url, settings, text):
    found = checks.check_celery(app(url, **settings))
    assert ids(found) == [expected]
    assert text in found[0].msg
    assert checks.for_worker(worker(app(url, **settings))) == found


def test_a_setting_for_another_broker_harms_nobody():
    assert checks.check_celery(app("redis://localhost", broker_channel_error_retry=False)) == []


def test_the_defaults_of_celery_are_warnings_and_no_errors():
    plain = Celery("plain", broker="amqp://", task_cls="jobs.task:Task", set_as_current=False, fixups=[])
    found = checks.check_celery(plain)
    assert ids(found) == ["jobs.W008"]
    assert not any(message.is_serious() for message in found)


def test_manage_py_check_looks_at_the_project_app(monkeypatch):
    monkeypatch.setattr(project, "celery_app", lambda: app(task_always_eager=True))
    assert "jobs.W002" in ids(run_checks(tags=["jobs"]))
    monkeypatch.setattr(project, "celery_app", lambda: None)
    assert ids(run_checks(tags=["jobs"])) == ["jobs.W016"]


# Databases


class Router:
    """``routes``: the database of each app label; ``kept_out``: those that no table of ours may be in."""

    routes: dict[str, str] = {}
    kept_out: tuple[str, ...] = ()

    def db_for_write(self, model, **hints):
        return self.routes.get(model._meta.app_label)

    def allow_migrate(self, db, app_label, **hints):
        return False if db in self.kept_out and app_label == "jobs" else None


@pytest.fixture
def route(settings):
    def use(routes: dict[str, str], kept_out: tuple[str, ...] = ()) -> None:
        router = Router()
        router.routes, router.kept_out = routes, kept_out
        settings.DATABASE_ROUTERS = [router]

    return use


def test_jobs_that_are_routed_out_of_their_databases(route):
    route({"jobs": "elsewhere"})
    [message] = checks.check_routing()
    assert (message.id, "'elsewhere'" in message.msg, "'elsewhere'" in message.hint) == ("jobs.E005", True, True)
    assert "jobs.E005" in ids(checks.for_worker(worker()))


def test_tables_that_the_routers_keep_out(route):
    route({}, kept_out=("default",))
    assert ids(checks.check_routing()) == ["jobs.E006"]


def test_jobs_that_live_apart_from_the_data(route):
    route(dict.fromkeys(("shop", "loyalty", "tests"), "data"))
    [message] = checks.check_routing()
    assert (message.id, "(data)" in message.hint) == ("jobs.W003", True)
    # Some other data may well be elsewhere.
    route({"shop": "data"})
    assert checks.check_routing() == []


def test_a_database_that_does_not_commit(settings, monkeypatch):
    monkeypatch.setitem(settings.DATABASES["default"], "AUTOCOMMIT", False)
    assert ids(checks.check_databases()) == ["jobs.E007"]


def test_another_isolation_level(settings, monkeypatch):
    monkeypatch.setattr(connections["default"], "vendor", "postgresql")
    for level, expected in ((None, []), (2, []), (3, ["jobs.W004"]), (4, ["jobs.W004"])):
        monkeypatch.setitem(settings.DATABASES["default"]["OPTIONS"], "isolation_level", level)
        assert ids(checks.check_databases()) == expected


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


def test_the_name_of_a_service_fits_a_routing_key(settings):
    for name in ("b" * 51, "bücher", "a..b"):
        settings.JOBS = {"EVENT_BROKER": "amqp://rabbit", "SERVICE": name}
        assert "up to 50 letters" in checks.check_settings()[0].msg


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


def test_a_worker_does_not_start_without_it(monkeypatch):
    monkeypatch.setattr(private, "PRIVATE", "billiard.pool:Worker.gone self | pool.py: something")
    assert ids(checks.for_worker(worker())) == ["jobs.E018"]


def test_a_worker_on_another_release_says_so(monkeypatch):
    monkeypatch.setattr(private, "TESTED", {"celery": "5.6"})
    assert ids(checks.for_worker(worker())) == ["jobs.W022"]


def test_a_database_in_memory(settings, monkeypatch):
    monkeypatch.setitem(settings.DATABASES["default"], "ENGINE", "django.db.backends.sqlite3")
    monkeypatch.setitem(settings.DATABASES["default"], "NAME", "file:memorydb?mode=memory&cache=shared")
    monkeypatch.setitem(settings.DATABASES["default"], "OPTIONS", {"transaction_mode": "IMMEDIATE"})
    assert ids(checks.for_worker(worker())) == ["jobs.E012"]
    # Django's tests run on such ones.
    assert [message for message in run_checks() if message.id.startswith("jobs.")] == []


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


def test_processes_that_are_not_forked_matter_to_prefork_only():
    threads = worker(pool_cls="celery.concurrency.thread:TaskPool", pool_start_method="spawn")
    assert checks.for_worker(threads) == []


def test_a_mysql_that_cannot_skip_locked_rows(monkeypatch):
    monkeypatch.setattr(connections["default"], "vendor", "mysql")
    for can, expected in ((True, []), (False, ["jobs.E015"])):
        monkeypatch.setattr(connections["default"].features, "has_select_for_update_skip_locked", can)
        assert ids(checks.check_worker(worker())) == expected


# Options for the tasks of others


def test_settings_give_options_to_tasks_by_their_names(settings):
    settings.JOBS = {
        "TASKS": {"*": {"max_crashes": 5}, "t.s*": {"atomic": False, "lock": "x"}, "t.sent": {"lock": None}}
    }
    own = app()
    made = {name: own.task(name=name, max_crashes=1)(body) for name in ("t.sent", "t.s", "t.other")}
    assert [(task.atomic, task.max_crashes, task.lock) for task in made.values()] == [
        (False, 5, None),
        (False, 5, "x"),
        (True, 5, None),
    ]
    assert made["t.s"].key_templates.keys() == {"lock"}


def test_an_option_from_the_settings_that_cannot_work_says_so_as_if_it_were_declared(settings):
    settings.JOBS = {"TASKS": {"t.*": {"unique": "k:{nobody}"}}}
    own = app()
    own.task(name="t.unique")(body)
    with pytest.raises((TypeError, ValueError), match="t.unique.*nobody"):
        own.finalize()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"t.*": {"atomc": False}}, "JOBS['TASKS']['t.*'] has no option 'atomc': did you mean `atomic`? The options"),
        ({"t.*": {"time_limit": 5}}, "has no option 'time_limit'. The options are atomic, max_crashes,"),
        ({"t.*": "atomic"}, "must be a dict of dicts"),
        (["t.*"], "must be a dict of dicts"),
    ],
)
def test_options_that_nobody_knows(settings, given, text):
    settings.JOBS = {"TASKS": given}
    [problem] = problems()
    assert text in problem
    assert ids(checks.for_worker(worker())) == ["jobs.E001"]


def test_an_option_of_a_queue_that_no_extension_reads_is_refused(settings, monkeypatch):
    """Or a limit would hold nothing, and say nothing."""
    monkeypatch.setattr(extensions, "through", lambda door: ())
    settings.JOBS = {"QUEUES": {"mail": {"concurrency": 3}}}
    [problem] = problems()
    assert problem == (
        "JOBS['QUEUES']['mail'] has no option 'concurrency'. Nothing that is installed reads one: leave it out."
    )
    settings.JOBS = {"QUEUES": {"mail": {}}}
    assert (problems(), [*conf().QUEUES]) == ([], ["mail"])


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"RETRYS": None}, "JOBS has no key 'RETRYS': did you mean `RETRY`?"),
        ({"retention": 5}, "JOBS has no key 'retention': did you mean `RETENTION`?"),
        ({"COLOUR": "blue"}, "JOBS has no key 'COLOUR'."),
        ({"RETRY": 12}, "JOBS['RETRY'] must be a list of times above 0"),
        ({"RETRY": [1, -1]}, "JOBS['RETRY'] must be a list of times above 0"),
        ({"TASK_OPTIONS": "tenant"}, "JOBS['TASK_OPTIONS'] must be a list, not a string."),
    ],
)
def test_a_setting_that_nobody_knows_or_that_cannot_work_names_the_cure(settings, given, text):
    settings.JOBS = given
    [problem] = problems()
    assert problem.startswith(text)


def test_a_list_of_times_may_be_one_of_timedeltas(settings):
    settings.JOBS = {"RETRY": [5, datetime.timedelta(minutes=1)]}
    assert conf().RETRY == [5, 60.0]


def test_a_check_that_was_silenced_is_silent(settings):
    settings.SILENCED_SYSTEM_CHECKS = ["jobs.W002"]
    assert checks.for_worker(worker(app(task_always_eager=True))) == []


def test_a_check_that_fails_stops_nobody_and_keeps_what_it_found(monkeypatch):
    monkeypatch.setattr(Celery, "connection_for_write", lambda self: 1 / 0)
    found = checks.check_celery(app(task_always_eager=True))
    assert ids(found) == ["jobs.W002", "jobs.W015"]
    assert "ZeroDivisionError" in found[1].msg


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


def test_events_need_two_connections_more(settings, monkeypatch):
    database = settings.DATABASES["default"]
    monkeypatch.setitem(database, "OPTIONS", {**database.get("OPTIONS", {}), "pool": {"max_size": 3}})
    settings.JOBS = {**settings.JOBS, "SERVICE": "shop", "EVENT_BROKER": "amqp://localhost//"}
    [message] = checks.check_databases()
    assert (message.id, "'max_size': 4" in message.hint) == ("jobs.W032", True)


def test_a_setting_of_an_app_that_is_not_installed_is_an_error(settings, monkeypatch):
    """jobs.E021: nothing would read it."""
    settings.JOBS = {**settings.JOBS, "RETENTION_EVENTS": 86400, "INSTANCE": None}
    monkeypatch.setattr(extensions, "unread_settings", lambda: dict.fromkeys(["RETENTION_EVENTS", "INSTANCE"], "a.b"))
    [message] = checks.check_settings()
    assert (message.id, "Add 'a.b' to INSTALLED_APPS" in message.hint) == ("jobs.E021", True)


# The book of ids
