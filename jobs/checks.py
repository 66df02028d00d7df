"""System checks: settings under which the promise does not hold, or is slow to.

``manage.py check`` runs what it can know; every worker runs all of them, and refuses to start on errors.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import celery
from celery.utils.functional import maybe_list
from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import connections, router
from django.utils.module_loading import import_string
from kombu.transport import TRANSPORT_ALIASES
from kombu.utils.url import maybe_sanitize_url

from jobs import conf as project
from jobs import extensions, store
from jobs.calling.options import says_how_to_retry
from jobs.conf import celery_settings, conf, did_you_mean, import_tasks, private, problems, task_options
from jobs.maintenance import zombies
from jobs.models import Job

if TYPE_CHECKING:
    from celery import Celery

#: What each check says -> the cure. E is an error, with which no worker starts; W is a warning.
MESSAGES = """
E001 {problem}
  -> See jobs/conf/__init__.py for every key.
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
E007 The database {alias!r} has AUTOCOMMIT = False: no worker would commit what it claims and settles.
  -> Remove AUTOCOMMIT; transaction.atomic() is what makes transactions.
E010 These tasks have another serializer than JSON, and every call of them would raise: {tasks}.
  -> Remove their option serializer, or the setting task_serializer.
E011 The pool's processes are not forked: they would not inherit the memory by which the worker knows what they run,
     and the pipe that wakes them.
  -> Set worker_pool_start_method = 'fork', or use -P threads.
E012 The SQLite database {alias!r} is in memory: the worker's processes would each have another one.
  -> Give it a file as NAME.
E013 JOBS['REDACT'] cannot be imported: {exc}
  -> Name a function redact(task, name, value) by its dotted path. Until then all values are hidden.
E015 The server of the database {alias!r} cannot skip locked rows: claims would wait for each other.
  -> Use MySQL 8.0.1, MariaDB 10.6 or newer.
E016 The setting task_serializer is {serializer!r}, and a job's arguments are JSON: every call would raise.
  -> Remove the setting; the tasks that need it keep their own, serializer='{serializer}', with JOBS['EXCLUDE'].
E017 The broker URL {url!r} names no transport that there is{close}
  -> Use jobs:// (the database), redis://, rediss://, sentinel://, amqp:// or amqps://.
E018 Other packages changed what jobs relies on, and is private to them: {names}.
  -> Install the releases that jobs is tested with ({tested}), or a newer jobs.
E019 A task of the project cannot be declared: {exc}
  -> Correct the declaration that it names; no worker starts, and no process that imports it.
E020 JOBS['EVENT_BROKER'] is set, and JOBS['SERVICE'] is not: others know the events, and the queue, by that name.
  -> Set JOBS['SERVICE'] to a name that no other service has: 'billing'.
W001 The app's task_cls is not jobs.Task: only tasks with base=jobs.Task are transactional.
  -> Use Celery("proj", task_cls="jobs.task:Task"), or ignore this if it is what you want.
W002 task_always_eager runs tasks in their caller: no call is a row, and none of the promise holds.
  -> Remove it outside of tests.
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
W015 {check} failed: {exc!r}
  -> Put right what it names; what else this check would have said is not known.
W016 The project's Celery app is not loaded in this process: calls would know none of its settings and routes.
  -> Import it in the __init__.py of the package that holds the settings: from proj.celery import app.
W017 Markers are kept for {kept:g} s, and jobs of these tasks may still be retried, or replayed by hand, after that
     time: {tasks}. What they do could be done twice.
  -> Set JOBS['MARKER_RETENTION'] above JOBS['RETENTION_FAILED'] and above all their retries; None keeps them.
W018 JOBS[{name!r}] is {seconds:g} seconds: what is older is deleted.
  -> For days write datetime.timedelta(days={seconds:g}). Silence this if seconds are meant.
W019 These settings mean nothing for jobs, only for tasks that are none: {names}. A free process claims a job's row, and
     its completion acknowledges it.
  -> Remove them, or silence this if other tasks need them.
W020 The task {task} {why}, and needs the option {option} of ours, which its package cannot know of.
  -> Set JOBS = {{'TASKS': {{{pattern!r}: {{{option}}}}}}}.
W021 These tasks stay stock Celery, although the app's task_cls is jobs.Task, because their base class is not: {tasks}.
  -> Let the base class inherit from jobs.Task, or name the tasks in JOBS['EXCLUDE'] if that is what you want.
W022 jobs was not tested with {names}.
  -> What it needs of them is there. Install {tested}, or watch this worker.
W023 These entries of the schedule are left out, and nothing runs for them: {entries}.
  -> Put right what each says. Workers run the schedule themselves; with JOBS['SCHEDULES'] = None celery beat does.
W024 What these entries of the schedule call is not there: {entries}.
  -> Put right the name or the arguments. Silence this if the tasks are those of another service.
W025 Workers do not import these modules, so their handlers get no event: {modules}.
  -> Write app.autodiscover_tasks(related_name='handlers') beside app.autodiscover_tasks(), or import them in tasks.py.
W031 In the database {alias!r} this process logs in as {role}, and other workers as {others}, whose sessions it may not
     end: what one of them leaves behind when its machine dies keeps its locks until the server notices.
  -> {cure}.
W032 The pool of the database {alias!r} has {size} connections for each process, and a worker's need {needed}: what gets
     none within the pool's timeout fails.
  -> Set OPTIONS = {{'pool': {{'max_size': {needed}}}}} or more, or remove the pool: workers keep their connections.
"""

#: The text and the cure by the id. A line that begins with a blank continues the one before.
_TEXTS = {
    entry[:4]: re.split(r"\s+-> ", " ".join(entry[4:].split())) for entry in re.split(r"\n(?=\S)", MESSAGES.strip())
}

#: Tasks of other packages that need an option of ours: the pattern for JOBS["TASKS"], the option, its value, and why.
NEEDS = {
    "post_office.tasks.send_queued_mail": (
        "post_office.*",
        "atomic",
        False,
        "closes its connection in its body (in a transaction that ends it failed, and its mails are sent again)",
    ),
}

JSON = ("json", "application/json")  #: Both names of the one serializer that jobs can use.
SHORT = 3600.0  #: Nobody means to keep a history for fewer seconds.

#: Celery's settings of how messages are fetched and acknowledged. A job is no message.
ABOUT_MESSAGES = """
task_acks_late task_acks_on_failure_or_timeout task_acks_on_failure task_acks_on_timeout task_reject_on_worker_lost
worker_cancel_long_running_tasks_on_connection_loss worker_eta_task_limit worker_prefetch_multiplier
""".split()

#: Celery's settings with the values under which a worker goes on without its broker.
ABOUT_OUTAGES = {
    "broker_connection_max_retries": (None,),
    "broker_connection_retry": (True,),
    "broker_connection_retry_on_startup": (True, None),
    "broker_channel_error_retry": (True,),
}


def for_worker(worker: Any) -> list[CheckMessage]:
    """What a worker checks before it starts; Celery itself runs Django's checks and throws the result away."""
    found = [*check_settings(), *check_databases(), *check_routing(), *check_celery(worker.app)]
    found += [*check_tasks(worker.app), *check_worker(worker)]
    return [message for message in found if not message.is_silenced()]


def _say(key: str, **values: Any) -> CheckMessage:
    """The message of this id, with its values; a set of names is cut after five."""
    for name, value in values.items():
        if isinstance(value, set):
            names = sorted(value)
            values[name] = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    text, hint = _TEXTS[key]
    kind = Error if key.startswith("E") else Warning
    return kind(text.format(**values), hint=hint.format(**values), id=f"jobs.{key}")


def _careful(check: Callable[..., Iterable[CheckMessage]]) -> Callable[..., list[CheckMessage]]:
    """A check that fails itself says so, and the others go on."""

    def careful(*subject: Any, **kwargs: Any) -> list[CheckMessage]:
        found = []
        try:
            for message in check(*subject):
                found.append(message)  # noqa: PERF402 (keeps what was found before it failed)
        except Exception as exc:
            found.append(_say("W015", check=check.__name__, exc=exc))
        return found

    return careful


def _databases() -> list[tuple[str, Any]]:
    """The job databases and their settings; none if ``settings.JOBS`` is unusable, which E001 says."""
    return [] if problems() else [(alias, settings.DATABASES[alias]) for alias in conf().DATABASES]


# Django's settings


@_careful
def check_settings() -> Iterator[CheckMessage]:
    if not settings.USE_TZ:
        yield _say("E004")
    if found := problems():
        yield from (_say("E001", problem=problem) for problem in found)
        return
    # problems() does not say it: that runs when the function's module cannot be imported yet.
    try:
        if (redact := conf().REDACT) is not None:
            import_string(redact)
    except Exception as exc:
        yield _say("E013", exc=exc)
    if conf().EVENT_BROKER is not None and conf().SERVICE is None:
        yield _say("E020")
    for name in ("RETENTION", "RETENTION_FAILED", "MARKER_RETENTION"):
        seconds = getattr(conf(), name)
        if seconds is not None and seconds < SHORT:
            yield _say("W018", name=name, seconds=seconds)


@_careful
def check_databases() -> Iterator[CheckMessage]:
    for alias, database in _databases():
        options = database.get("OPTIONS", {})
        mode = str(options.get("transaction_mode") or "").upper()
        # A transaction that first reads and then writes fails at once if another one has written meanwhile.
        if database["ENGINE"].endswith("sqlite3") and mode not in ("IMMEDIATE", "EXCLUSIVE"):
            yield _say("E002", alias=alias)
        if not database.get("AUTOCOMMIT", True):
            yield _say("E007", alias=alias)
        level = options.get("isolation_level")
        # One for what the companion's threads take turns at, and one that a hung query may hold; two for events.
        yield from _small_pool(alias, database, 2 if conf().EVENT_BROKER is None else 4)
        # 2 is psycopg's IsolationLevel.READ_COMMITTED.
        if store.of(alias).has_notify and level is not None and int(level) != 2:
            yield _say("W004", alias=alias)


@_careful
def check_routing() -> Iterator[CheckMessage]:
    """A job is committed with the data it belongs to only if both are in the same database."""
    aliases = [alias for alias, _ in _databases()]
    if not aliases:
        return
    label, home = Job._meta.app_label, router.db_for_write(Job)
    for alias in aliases:
        if not router.allow_migrate_model(alias, Job):
            yield _say("E006", alias=alias, label=label)
    if home not in aliases:
        yield _say("E005", home=home, label=label, aliases=aliases)
        return
    elsewhere = {
        router.db_for_write(model)
        for model in apps.get_models()
        if model._meta.managed
        and model._meta.app_label != label
        and not model._meta.app_config.name.startswith("django.contrib.")
    }
    if elsewhere and home not in elsewhere:
        yield _say("W003", home=home, elsewhere=elsewhere)


def _small_pool(alias: str, database: Any, needed: int) -> Iterator[CheckMessage]:
    if pool := database.get("OPTIONS", {}).get("pool"):
        # As psycopg_pool has it.
        options = pool if isinstance(pool, dict) else {}
        size = options.get("max_size") or options.get("min_size", 4)
        if size < needed:
            yield _say("W032", alias=alias, size=size, needed=needed)


def check_sessions(*args: Any, databases: Iterable[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Whether a worker can end what others leave behind. It asks the databases: as Django's own such checks it runs
    where they are named (``manage.py check --database default``), and in workers.
    """
    named, found = set(databases or ()), []
    for alias in [alias for alias, _ in _databases() if alias in named]:
        role, others = store.of(alias).out_of_reach()
        if others:
            found.append(_say("W031", alias=alias, role=role, others=set(others), cure=zombies.CURE.format(role=role)))
    return found


# Celery's settings


@_careful
def check_celery(app: Celery | None = None) -> Iterator[CheckMessage]:
    """Check the app's settings, without its tasks. By default those of the project's app."""
    if (app := app or project.celery_app()) is None:
        yield _say("W016")
        return
    conf, ours = app.conf, celery_settings()
    if conf.task_always_eager:
        yield _say("W002")
    is_ours = getattr(app.Task, "is_transactional", False)
    if is_ours and conf.task_serializer not in JSON:
        yield _say("E016", serializer=conf.task_serializer)
    if unknown := [(url, close) for url in _broker_urls(app) if (close := _unknown_transport(url))]:
        # The app cannot be asked anything else.
        yield from (_say("E017", url=maybe_sanitize_url(url), close=close) for url, close in unknown)
        return
    is_amqp = driver(app) == "amqp"
    brittle = [
        f"{name} = {conf[name]!r}"
        for name, good in ABOUT_OUTAGES.items()
        if conf[name] not in good and (is_amqp or name != "broker_channel_error_retry")
    ]
    if brittle:
        yield _say("W008", values=", ".join(brittle))
    idle = {name for name in ABOUT_MESSAGES if conf.value_set_for(name) and conf[name] != ours.get(name)}
    if "visibility_timeout" in (conf.broker_transport_options or {}):
        idle.add("visibility_timeout")
    if idle:
        yield _say("W019", names=idle)
    if problems():
        return
    yield from _said_by("checks", app)
    if is_ours:
        yield from neglected()


def neglected() -> Iterator[CheckMessage]:
    """The tasks of installed packages that were not given what they need."""
    for task, (pattern, option, value, why) in NEEDS.items():
        module, _, name = task.rpartition(".")
        # Some packages make their tasks only if one of their settings says so.
        is_there = hasattr(sys.modules.get(module), name)
        if is_there and not is_excluded(task) and task_options(task).get(option) != value:
            yield _say("W020", task=task, why=why, option=f"{option!r}: {value!r}", pattern=pattern)


def is_excluded(task: str) -> bool:
    return not problems() and any(fnmatchcase(task, pattern) for pattern in conf().EXCLUDE)


def _broker_urls(app: Celery) -> set[str]:
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


def driver(app: Celery) -> str | None:
    """What kind of broker the app has; None if its client library is not installed, which Celery says itself."""
    try:
        return str(app.connection_for_write().transport.driver_type)
    except ImportError:
        return None


# A worker: its pool and its tasks


@_careful
def check_worker(worker: Any) -> Iterator[CheckMessage]:
    pool = worker.pool_cls if isinstance(worker.pool_cls, str) else worker.pool_cls.__module__
    pool = pool.partition(":")[0].rpartition(".")[2]
    tested = ", ".join(f"{name} {release}" for name, release in private.TESTED.items())
    if gone := private.missing():
        yield _say("E018", names="; ".join(gone), tested=tested)
    if untested := private.untested():
        yield _say("W022", names=", ".join(untested), tested=tested)
    if pool in ("gevent", "eventlet"):
        yield _say("E003", pool=pool)
    if pool == "prefork" and getattr(worker, "pool_start_method", "fork") != "fork":
        yield _say("E011")
    for alias, database in _databases():
        if pool in ("thread", "solo"):
            # Each thread that runs jobs keeps one; stock tasks run beside them.
            yield from _small_pool(alias, database, 1 + (worker.concurrency if pool == "thread" else 1))
        connection, name = connections[alias], str(database.get("NAME"))
        if not connection.features.has_select_for_update_skip_locked and not store.of(alias).has_one_writer:
            yield _say("E015", alias=alias)
        if database["ENGINE"].endswith("sqlite3") and (":memory:" in name or "mode=memory" in name):
            yield _say("E012", alias=alias)
    if not getattr(worker.app.Task, "is_transactional", False):
        yield _say("W001")
    default_limit = worker.time_limit or worker.app.conf.task_time_limit
    unlimited = {name for name, task in _own_tasks(worker.app).items() if not (task.time_limit or default_limit)}
    if unlimited and pool == "prefork":
        yield _say("W011", tasks=unlimited)


@_careful
def check_tasks(app: Celery | None = None) -> Iterator[CheckMessage]:
    """Check the options of the tasks. By default those of the project's tasks, which are imported for it."""
    if app is None:
        if (app := project.celery_app()) is None:
            return
        try:
            import_tasks(app)
        except TypeError as exc:
            yield _say("E019", exc=exc)
            return
    tasks = _own_tasks(app)
    foreign = {name for name, task in app.tasks.items() if has_foreign_base(task) and not is_excluded(name)}
    if foreign and getattr(app.Task, "is_transactional", False):
        yield _say("W021", tasks=foreign)
    # E016 is about the setting itself.
    fine = (*JSON, app.conf.task_serializer)
    if odd := {name for name, task in tasks.items() if task.serializer not in fine}:
        yield _say("E010", tasks=odd)
    if problems():
        return
    yield from _said_by("checks_of_tasks", app)
    if (kept := conf().MARKER_RETENTION) is None:
        return
    # Once the marker is gone, the same can be done again.
    failed = conf().RETENTION_FAILED
    keyed = {name: task for name, task in tasks.items() if "idempotency_key" in task.key_templates}
    if late := {name for name, task in keyed.items() if failed is None or max(failed, _retry_horizon(task)) > kept}:
        yield _say("W017", kept=kept, tasks=late)


def _said_by(door: str, app: Celery) -> Iterator[CheckMessage]:
    for look in extensions.through(door):
        for number, words in look(app):
            yield _say(number, **words)


for check in (check_settings, check_databases, check_routing, check_celery, check_tasks):
    register(check, "jobs")
register(check_sessions, Tags.database)


def _own_tasks(app: Celery) -> dict[str, Any]:
    return {
        name: task
        for name, task in app.tasks.items()
        if getattr(task, "is_transactional", False) and not task.is_stock()
    }


def has_foreign_base(task: Any) -> bool:
    """Whether the task's class is neither ours nor Celery's own."""
    if getattr(task, "is_transactional", False):
        return False
    # Celery makes a class for a task that was a function: its base counts.
    bases = type(task).__mro__[1 if "__wrapped__" in vars(type(task)) else 0 :]
    return any(issubclass(each, celery.Task) and not each.__module__.startswith("celery.") for each in bases)


def _retry_horizon(task: Any) -> float:
    """Seconds until a task that always fails is given up, as far as its options tell."""
    if not says_how_to_retry(task):
        return float(1.25 * sum(conf().RETRY or ()))
    if task.max_retries is None:
        return float("inf")
    pause = task.default_retry_delay
    if getattr(task, "retry_backoff", False):
        pause = getattr(task, "retry_backoff_max", 600)
    return float(task.max_retries * pause)
