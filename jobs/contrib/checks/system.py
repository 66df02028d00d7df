"""System checks: settings that break the promise of ``jobs``, or make it slow.

``manage.py check`` runs the checks that need no worker. A worker runs all checks, and does not start on errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import chain
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import connections, router

from jobs import conf as project
from jobs import extensions, store
from jobs.conf import Celery, conf, import_tasks, is_ours, problems
from jobs.models import Job, tables

#: What each check says -> the cure. E is an error: no worker starts with it. W is a warning.
MESSAGES = """
E001 {problem}
  -> See docs/reference/settings.md for every key.
E002 The SQLite database {alias!r} does not use IMMEDIATE transactions.
  -> Set OPTIONS = {{'transaction_mode': 'IMMEDIATE', 'timeout': 20, 'init_command': 'PRAGMA journal_mode=WAL'}}.
E003 The worker pool {pool} is not supported.
  -> Use -P prefork, -P threads or -P solo: a transaction must not be shared by green threads.
E004 Jobs need USE_TZ = True: naive times are ambiguous when clocks change.
  -> Set USE_TZ = True; TIME_ZONE may be whatever you like.
E005 The database routers write jobs to {home!r}, which is not in JOBS['DATABASES']: every call would raise.
  -> Set JOBS = {{'DATABASES': [{home!r}, ...]}}, or route {label!r} to one of {aliases}.
E006 JOBS['DATABASES'] names {alias!r}, and the database routers keep the tables of jobs out of it.
  -> Let allow_migrate({alias!r}, {label!r}) of DATABASE_ROUTERS return True, or None.
E007 The database {alias!r} has AUTOCOMMIT = False: no worker would commit what it claims and finishes.
  -> Remove AUTOCOMMIT; transaction.atomic() is what makes transactions.
E025 The database {alias!r} has a TIME_ZONE, in which Django writes times that our SQL reads as UTC.
  -> Remove TIME_ZONE from settings.DATABASES[{alias!r}]; the setting TIME_ZONE is for what people see.
E010 These tasks have another serializer than JSON, and every call of them would raise: {tasks}.
  -> Remove their option serializer, or the setting task_serializer.
E011 The pool's processes are not forked: they would not inherit the memory that tells the worker what they run,
     and the pipe that wakes them.
  -> Set worker_pool_start_method = 'fork', or use -P threads.
E012 The SQLite database {alias!r} is in memory: the worker's processes would each have another one.
  -> Give it a file as NAME.
E015 The server of the database {alias!r} cannot skip locked rows: claims would wait for each other.
  -> Use MySQL 8.0.1, MariaDB 10.6 or newer.
E016 The setting task_serializer is {serializer!r}, and a job's arguments are JSON: every call would raise.
  -> Remove the setting; the tasks that need it keep their own, serializer='{serializer}', with JOBS['EXCLUDE'].
E019 A task of the project cannot be declared: {exc}
  -> Correct the declaration that it names; no worker starts, and no process that imports it.
E021 JOBS[{name!r}] is set, and {app}, which alone reads it, is not installed.
  -> Add {app!r} to INSTALLED_APPS, and run manage.py migrate; or remove the setting.
W002 task_always_eager runs tasks in their caller: no call is a row, and none of the promise holds.
  -> Remove it outside of tests.
W015 {check} failed: {exc!r}
  -> Put right what it names; what else this check would have said is not known.
W016 The project's Celery app is not loaded in this process: calls would know none of its settings and routes.
  -> Import it in the __init__.py of the package that holds the settings: from proj.celery import app.
"""

TEXTS: dict[str, list[str]] = {}  #: The text and the cure by the id.


def add_texts(messages: str) -> None:
    """Add what looks as :data:`MESSAGES` does. A line that begins with a blank continues the one before."""
    for entry in re.split(r"\n(?=\S)", messages.strip()):
        TEXTS[entry[:4]] = re.split(r"\s+-> ", " ".join(entry[4:].split()))


add_texts(MESSAGES)

#: Checks that extensions add (their ``checks.py``). These check ``settings.JOBS``, after each key was found valid.
OF_SETTINGS: list[Callable[[], Iterable[CheckMessage]]] = []
#: These query a database, by its alias. The next two check the Celery app: before its tasks are imported, and after.
OF_DATABASE: list[Callable[[str], Iterable[CheckMessage]]] = []
OF_APP: list[Callable[[Celery], Iterable[CheckMessage]]] = []
OF_TASKS: list[Callable[[Celery], Iterable[CheckMessage]]] = []
#: These check the worker that starts.
OF_WORKER: list[Callable[[Any], Iterable[CheckMessage]]] = []

JSON = ("json", "application/json")  #: Both names of the one serializer that jobs can use.


def for_worker(worker: Any) -> list[CheckMessage]:
    """What a worker checks before it starts; Celery itself runs Django's checks and throws the result away."""
    found = [*check_settings(), *check_databases(), *check_routing(), *check_celery(worker.app)]
    found += [*check_tasks(worker.app), *check_worker(worker)]
    return [message for message in found if not message.is_silenced()]


def say(key: str, **values: Any) -> CheckMessage:
    """The message of this id, with its values; a set of names is cut after five."""
    for name, value in values.items():
        if isinstance(value, set):
            names = sorted(value)
            values[name] = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    text, hint = TEXTS[key]
    kind = Error if key.startswith("E") else Warning
    return kind(text.format(**values), hint=hint.format(**values), id=f"jobs.{key}")


def _careful(check: Callable[..., Iterable[CheckMessage]]) -> Callable[..., list[CheckMessage]]:
    """Wrap a check: if it raises, W015 says so, and the other checks still run."""

    def careful(*subject: Any, **kwargs: Any) -> list[CheckMessage]:
        found = []
        try:
            for message in check(*subject):
                found.append(message)  # noqa: PERF402 (keeps what was found before it failed)
        except Exception as exc:
            found.append(say("W015", check=check.__name__, exc=exc))
        return found

    return careful


def _databases() -> list[tuple[str, Any]]:
    """The job databases and their settings; none if ``settings.JOBS`` is unusable, which E001 says."""
    return [] if problems() else [(alias, settings.DATABASES[alias]) for alias in conf().DATABASES]


# Django's settings


@_careful
def check_settings() -> Iterator[CheckMessage]:
    if not settings.USE_TZ:
        yield say("E004")
    if found := problems():
        yield from (say("E001", problem=problem) for problem in found)
        return
    for name, app in unread_settings().items():
        if getattr(settings, "JOBS", {}).get(name) is not None:
            yield say("E021", name=name, app=app)
    yield from chain.from_iterable(check() for check in OF_SETTINGS)


@_careful
def check_databases() -> Iterator[CheckMessage]:
    for alias, database in _databases():
        options = database.get("OPTIONS", {})
        mode = str(options.get("transaction_mode") or "").upper()
        # A transaction that first reads and then writes fails at once if another one has written meanwhile.
        if database["ENGINE"].endswith("sqlite3") and mode not in ("IMMEDIATE", "EXCLUSIVE"):
            yield say("E002", alias=alias)
        if not database.get("AUTOCOMMIT", True):
            yield say("E007", alias=alias)
        if database.get("TIME_ZONE") not in (None, "UTC") and not connections[alias].features.supports_timezones:
            yield say("E025", alias=alias)


@_careful
def check_routing() -> Iterator[CheckMessage]:
    """A job is committed with the data it belongs to only if both are in the same database."""
    aliases = [alias for alias, _ in _databases()]
    if not aliases:
        return
    label, home = Job._meta.app_label, router.db_for_write(Job)
    for alias in aliases:
        # Extensions that are apps of their own have labels of their own.
        kept_out = {model._meta.app_label for model in tables() if not router.allow_migrate_model(alias, model)}
        for each in sorted(kept_out):
            yield say("E006", alias=alias, label=each)
    if home not in aliases:
        yield say("E005", home=home, label=label, aliases=aliases)


def ask_databases(*args: Any, databases: Iterable[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Like Django's database checks it runs for named databases (``manage.py check --database``), and in workers."""
    named = [alias for alias, _ in _databases() if alias in set(databases or ())]
    return [message for alias in named for check in OF_DATABASE for message in check(alias)]


# Celery's settings


@_careful
def check_celery(app: Celery | None = None) -> Iterator[CheckMessage]:
    """Check the app's settings, without its tasks. By default those of the project's app."""
    if (app := app or project.celery_app()) is None:
        yield say("W016")
        return
    conf = app.conf
    if conf.task_always_eager:
        yield say("W002")
    has_base = getattr(app.Task, "is_transactional", False)
    if has_base and conf.task_serializer not in JSON:
        yield say("E016", serializer=conf.task_serializer)
    if problems():
        return
    yield from chain.from_iterable(check(app) for check in OF_APP)


def driver(app: Celery) -> str | None:
    """What kind of broker the app has; None if its client library is not installed, which Celery says itself."""
    try:
        return str(app.connection_for_write().transport.driver_type)
    except ImportError:
        return None


# A worker: its pool and its tasks


@_careful
def check_worker(worker: Any) -> Iterator[CheckMessage]:
    pool = pool_of(worker)
    if pool in ("gevent", "eventlet"):
        yield say("E003", pool=pool)
    if pool == "prefork" and getattr(worker, "pool_start_method", "fork") != "fork":
        yield say("E011")
    for alias, database in _databases():
        connection, name = connections[alias], str(database.get("NAME"))
        if not connection.features.has_select_for_update_skip_locked and not store.of(alias).has_one_writer:
            yield say("E015", alias=alias)
        if database["ENGINE"].endswith("sqlite3") and (":memory:" in name or "mode=memory" in name):
            yield say("E012", alias=alias)
    if not problems():
        yield from chain.from_iterable(check(worker) for check in OF_WORKER)


def pool_of(worker: Any) -> str:
    """``prefork``, ``thread``, ``solo``, ..."""
    pool = worker.pool_cls if isinstance(worker.pool_cls, str) else worker.pool_cls.__module__
    return pool.partition(":")[0].rpartition(".")[2]


@_careful
def check_tasks(app: Celery | None = None) -> Iterator[CheckMessage]:
    """Check the options of the tasks. By default those of the project's tasks, which are imported for it."""
    if app is None:
        if (app := project.celery_app()) is None:
            return
        try:
            import_tasks(app)
        except TypeError as exc:
            yield say("E019", exc=exc)
            return
    tasks = own_tasks(app)
    # E016 is about the setting itself.
    fine = (*JSON, app.conf.task_serializer)
    if odd := {name for name, task in tasks.items() if task.serializer not in fine}:
        yield say("E010", tasks=odd)
    if problems():
        return
    yield from chain.from_iterable(check(app) for check in OF_TASKS)


#: The tag of the checks that import no tasks and no broker's client.
OF_DJANGO = "jobs_settings"
for check in (check_settings, check_databases, check_routing):
    register(check, "jobs", OF_DJANGO)
for check in (check_celery, check_tasks):
    register(check, "jobs")
register(ask_databases, Tags.database)


def own_tasks(app: Celery) -> dict[str, Any]:
    return {name: task for name, task in app.tasks.items() if is_ours(task)}


def unread_settings() -> dict[str, str]:
    """The keys of ``settings.JOBS`` that belong to extensions that are not installed, and the extension of each."""
    return {
        key: name
        for name in extensions.folders().keys() - extensions.present().keys()
        for key in getattr(import_module(name), "SETTINGS", ())
    }


# Extensions add their checks.
tuple(extensions.modules("checks"))
