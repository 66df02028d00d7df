"""Warnings: settings with which jobs run, and which sooner or later cost time, work or a guarantee."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterator
from typing import Any

from celery.utils.functional import maybe_list
from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage
from django.db import router
from kombu.transport import TRANSPORT_ALIASES
from kombu.utils.url import maybe_sanitize_url

from jobs import store
from jobs.conf import conf, did_you_mean, is_stock, task_option_names
from jobs.conf import own_tasks as jobs_own
from jobs.contrib.checks.system import (
    OF_APP,
    OF_SETTINGS,
    OF_TASKS,
    OF_WORKER,
    add_texts,
    driver,
    own_tasks,
    pool_of,
    say,
)
from jobs.contrib.passing.backoff import says_how_to_retry
from jobs.models import Job, tables
from jobs.store.base import Store
from jobs.store.postgresql import PostgreSQL

add_texts("""
E017 The broker URL {url!r} names no transport that there is{close}
  -> Use jobs:// (the database), redis://, rediss://, sentinel://, amqp:// or amqps://.
W001 The app's task_cls is not jobs.Task: only tasks with base=jobs.Task are transactional.
  -> Use Celery("proj", task_cls="jobs.task:Task"), or ignore this if it is what you want. If the app stands in an
     installed package, name it: JOBS = {{'APPS': ['proj']}}.
W003 Jobs are written to the database {home!r}, and no model of the project is: a job is not committed together with
     the data it belongs to.
  -> Let jobs live where your data is ({elsewhere}): JOBS['DATABASES'], and DATABASE_ROUTERS.
W004 The database {alias!r} uses another isolation level than READ COMMITTED: transactions that meet are refused by the
     server, their bodies run again, and each time counts as a node loss.
  -> Remove isolation_level from OPTIONS, and use select_for_update() where bodies meet.
W008 A worker ends, and its jobs with it, when its broker is away for long or closes a channel: {values}.
  -> celery_settings() of jobs.conf sets it well: broker_connection_max_retries = None. broker_connection_retry,
     broker_connection_retry_on_startup, broker_channel_error_retry = True.
W011 These tasks have no hard time limit: {tasks}. A body that never ends holds its process, and its job stays running
     for ever.
  -> celery_settings() of jobs.conf sets it well: task_time_limit = 1800.
W017 Markers are kept for {kept:g} s, and jobs of these tasks may still be retried, or replayed by hand, after that
     time: {tasks}. What they do could be done twice.
  -> Set JOBS['MARKER_RETENTION'] above JOBS['RETENTION_FAILED'] and above all their retries; None keeps them.
W018 JOBS[{name!r}] is {seconds:g} seconds: what is older is deleted.
  -> For days write datetime.timedelta(days={seconds:g}). Silence this if seconds are meant.
W032 The pool of the database {alias!r} has {size} connections for each process, and a worker's need {needed}: what gets
     none within the pool's timeout fails.
  -> Set OPTIONS = {{'pool': {{'max_size': {needed}}}}} or more, or remove the pool: workers keep their connections.
W033 These tasks are stock Celery, and have options of jobs, which do nothing there: {tasks}.
  -> Use Celery("proj", task_cls="jobs.task:Task"), or base=jobs.Task where they are declared.
W034 JOBS['TASKS'] has options for {patterns}, and no task has such a name.
  -> Correct the pattern, which is of the task's full name: 'post_office.tasks.*'; or import the task.
W035 Options of these tasks cannot do what they say: {tasks}.
  -> Use numbers from 0 (max_retries=None retries for ever), and a soft time limit below the hard one.
""")

SHORT = 3600.0  #: To keep a history for fewer seconds is a mistake: days were meant.

#: Options of Celery's that are no negative numbers.
NUMBERS = "max_retries default_retry_delay retry_backoff retry_backoff_max soft_time_limit time_limit".split()

#: Celery's settings, and the values with which a worker survives an outage of its broker.
ABOUT_OUTAGES = {
    "broker_connection_max_retries": (None,),
    "broker_connection_retry": (True,),
    "broker_connection_retry_on_startup": (True, None),
    "broker_channel_error_retry": (True,),
}


# Django's settings


@OF_SETTINGS.append
def forgetful() -> Iterator[CheckMessage]:
    for name in ("RETENTION", "RETENTION_FAILED", "MARKER_RETENTION"):
        seconds = getattr(conf(), name)
        if seconds is not None and seconds < SHORT:
            yield say("W018", name=name, seconds=seconds)


@OF_SETTINGS.append
def refused() -> Iterator[CheckMessage]:
    for alias in conf().DATABASES:
        if not _reads_committed(store.of(alias), settings.DATABASES[alias].get("OPTIONS", {}).get("isolation_level")):
            yield say("W004", alias=alias)
        # One connection for the jobs of a process, and one that a hung query may hold. The supervisor takes none.
        yield from _small_pool(alias, 2)


def _reads_committed(at: Store, level: Any) -> bool:
    """Whether an ``isolation_level`` of the settings is READ COMMITTED, as Django sets it without one."""
    if level is not None and isinstance(at, PostgreSQL):
        from django.db.backends.postgresql.psycopg_any import IsolationLevel

        # The numbers are the driver's.
        return bool(int(level) == IsolationLevel.READ_COMMITTED)
    return level is None or at.name != "mysql" or str(level).lower() == "read committed"


@OF_SETTINGS.append
def apart() -> Iterator[CheckMessage]:
    """A job is committed with the data it belongs to only if both are in the same database."""
    home = router.db_for_write(Job)
    elsewhere = {
        router.db_for_write(model)
        for model in apps.get_models()
        if model._meta.managed
        and model not in tables()
        and not model._meta.app_config.name.startswith("django.contrib.")
    }
    if home in conf().DATABASES and elsewhere and home not in elsewhere:
        yield say("W003", home=home, elsewhere=elsewhere)


def _small_pool(alias: str, needed: int) -> Iterator[CheckMessage]:
    if pool := settings.DATABASES[alias].get("OPTIONS", {}).get("pool"):
        # The defaults of psycopg_pool.
        options = pool if isinstance(pool, dict) else {}
        size = options.get("max_size") or options.get("min_size", 4)
        if size < needed:
            yield say("W032", alias=alias, size=size, needed=needed)


# Celery's settings, and a worker


@OF_APP.append
def brittle(app: Any) -> Iterator[CheckMessage]:
    if unknown := [(url, close) for url in _broker_urls(app) if (close := _unknown_transport(url))]:
        # The app cannot be asked anything else.
        yield from (say("E017", url=maybe_sanitize_url(url), close=close) for url, close in unknown)
        return
    is_amqp = driver(app) == "amqp"
    found = [
        f"{name} = {app.conf[name]!r}"
        for name, good in ABOUT_OUTAGES.items()
        if app.conf[name] not in good and (is_amqp or name != "broker_channel_error_retry")
    ]
    if found:
        yield say("W008", values=", ".join(found))


def _broker_urls(app: Any) -> set[str]:
    settings = [app.conf[name] for name in ("broker_url", "broker_read_url", "broker_write_url")]
    # Each may be a list, and hold several URLs with semicolons in between.
    return {url for each in settings for part in maybe_list(each) or () for url in str(part).split(";")} - {""}


def _unknown_transport(url: str) -> str:
    """The end of a sentence about a URL that kombu finds no transport for, or takes for a host's name; else empty."""
    scheme, has_scheme, _rest = url.partition("://")
    if not has_scheme:
        # kombu takes it for an AMQP host. With a transport's name in front it is a mistake.
        name = url.partition(":")[0]
        return f": did you mean `{name}://`?" if name != url and name in TRANSPORT_ALIASES else ""
    scheme = scheme.partition("+")[0]
    # A scheme with a dot names a class.
    return "" if scheme in TRANSPORT_ALIASES or "." in scheme else did_you_mean(scheme, TRANSPORT_ALIASES)


@OF_WORKER.append
def unusual(worker: Any) -> Iterator[CheckMessage]:
    pool = pool_of(worker)
    for alias in conf().DATABASES if pool in ("thread", "solo") else ():
        # Each thread that runs jobs keeps one; stock tasks run beside them.
        yield from _small_pool(alias, 1 + (worker.concurrency if pool == "thread" else 1))
    if not _is_transactional(worker.app.Task) and not _has_only_stock(worker.app):
        yield say("W001")
    default_limit = worker.time_limit or worker.app.conf.task_time_limit
    unlimited = {name for name, task in own_tasks(worker.app).items() if not (task.time_limit or default_limit)}
    if unlimited and pool == "prefork":
        yield say("W011", tasks=unlimited)


@OF_TASKS.append
def stock(app: Any) -> Iterator[CheckMessage]:
    if _has_only_stock(app):
        yield say("W001")


@OF_TASKS.append
def without_effect(app: Any) -> Iterator[CheckMessage]:
    ours = frozenset(task_option_names())
    stock = [task for name, task in app.tasks.items() if not is_stock(name) and not _is_transactional(task)]
    # Celery makes a class for each declaration, which has its options.
    having = {task.name: sorted(ours & vars(type(task)).keys()) for task in stock}
    if odd := {f"{name} ({', '.join(options)})" for name, options in having.items() if options}:
        yield say("W033", tasks=odd)
    if unused := {pattern for pattern in conf().TASKS if not fnmatch.filter(app.tasks, pattern)}:
        yield say("W034", patterns=unused)


def _has_only_stock(app: Any) -> bool:
    """The project has tasks, and none is ours: the app's task_cls was forgotten."""
    names = {name for name in app.tasks if not is_stock(name) and name not in jobs_own()}
    return bool(names) and names.isdisjoint(own_tasks(app)) and not _is_transactional(app.Task)


def _is_transactional(task: Any) -> bool:
    return bool(getattr(task, "is_transactional", False))


@OF_TASKS.append
def impossible(app: Any) -> Iterator[CheckMessage]:
    found = set()
    for name, task in own_tasks(app).items():
        given = {option: value for option in NUMBERS if (value := getattr(task, option, None))}
        odd = [f"{option}={value}" for option, value in given.items() if value < 0]
        if odd or given.get("soft_time_limit", 0) >= given.get("time_limit", math.inf):
            odd = odd or [f"{option}={given[option]}" for option in ("soft_time_limit", "time_limit")]
            found.add(f"{name} ({', '.join(odd)})")
    if found:
        yield say("W035", tasks=found)


@OF_TASKS.append
def twice(app: Any) -> Iterator[CheckMessage]:
    """Once the marker is gone, the same can be done again."""
    if (kept := conf().MARKER_RETENTION) is None:
        return
    failed = conf().RETENTION_FAILED
    keyed = {name: task for name, task in own_tasks(app).items() if "idempotency_key" in task.key_templates}
    if late := {name for name, task in keyed.items() if failed is None or max(failed, _retry_horizon(task)) > kept}:
        yield say("W017", kept=kept, tasks=late)


def _retry_horizon(task: Any) -> float:
    """Seconds until a task that always fails is given up, as far as its options tell."""
    if not says_how_to_retry(task):
        return float(1.25 * sum(getattr(conf(), "RETRY", None) or ()))
    if task.max_retries is None:
        return float("inf")
    pause = task.default_retry_delay
    if getattr(task, "retry_backoff", False):
        pause = getattr(task, "retry_backoff_max", 600)
    return float(task.max_retries * pause)
