"""The settings: ``settings.JOBS`` (its keys are the fields of :class:`Settings`), and :func:`celery_settings`."""

import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from celery import Celery as Celery
from celery import current_app
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from jobs import extensions
from jobs.conf.logs import logger


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What ``settings.JOBS`` may hold. Times are in seconds, sizes in bytes. Extensions read more (``settings.py``)."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    #: Aliases of the databases that jobs may live in. The first one is where nodes and, with the ``jobs://`` broker,
    #: messages live. A job is committed with your data only if both are in the same database.
    DATABASES: Sequence[str] = ("default",)
    #: Names of tasks that stay stock Celery although they use our base class; ``"legacy.*"`` matches a prefix.
    #: Celery's built-ins (``celery.*``) always stay stock.
    EXCLUDE: Sequence[str] = ()
    #: Options of ours for tasks whose code is not yours, by name or pattern: ``{"post_office.*": {"atomic": False}}``.
    #: All patterns that match a task apply, in this order: a later one wins, and each wins over the task's code.
    TASKS: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Limits of queues, over all workers: how many of a queue's jobs run at once, and how many start in a time:
    #: ``{"mail": {"concurrency": 3, "rate": "100/m"}}``. What a person sets (``manage.py jobs limit``) wins.
    #: Also queues whose keys take turns: ``{"mail": {"fair_key": "{customer_id}", "weights": {"big": 3}}}``.
    QUEUES: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: The most bytes that a job's arguments, or an event's data, may take as JSON.
    MAX_ARGS_BYTES: int = 256 * 1024

    #: The most jobs that a process claims in one statement. It claims as many as it expects to run in 50 ms.
    CLAIM_BATCH: int = 100
    #: How often a worker looks for what has come due (countdown, eta, retries), and for jobs that no NOTIFY told of.
    #: No job waits longer than this if a worker is free.
    POLL_INTERVAL: float = 1.0
    #: How often a worker proves that it is alive.
    HEARTBEAT: float = 3.0
    #: A worker whose heartbeat stood still for this long is dead, and its jobs are given back. At least three
    #: heartbeats: else one slow beat makes a live worker look dead. With five, a short outage of the database does not.
    DEAD_AFTER: float = 15.0

    #: Whether the commit of a job waits until it is on the server's disk (PostgreSQL). With False a crash of the
    #: server, or a failover to its standby, may undo jobs of the last moment, each with its effects: they run again. A
    #: task's own ``synchronous_commit`` wins.
    SYNCHRONOUS_COMMIT: bool = True

    #: A job whose body killed its process this often ends ``failed``. A task's own ``max_crashes`` wins.
    MAX_CRASHES: int = 3
    #: A job that lost its worker or its database this often ends ``failed``. Every deploy that kills workers loses
    #: innocent jobs: keep it well above MAX_CRASHES.
    MAX_NODE_LOSSES: int = 10
    #: A job whose body snoozed this often ends ``failed``: it waits for something that never comes.
    MAX_SNOOZES: int = 10_000

    #: The most rows that one statement of the maintenance touches. Of old jobs on PostgreSQL it deletes 10 times as
    #: many: no process waits for them.
    BATCH: int = 500

    #: How long a marker (``idempotency_key=``, ``once()``) is kept, and with it the job whose result it replays.
    #: It must be longer than the longest time after which a task may still be retried. None keeps them.
    MARKER_RETENTION: float | None = 90 * 86400.0
    #: How long a duplicate waits for the run that has the marker; then it frees its process, and tries again later.
    MARKER_WAIT: float = 5.0
    #: How long ``delay()`` of a unique job waits for another transaction that has the key.
    UNIQUE_WAIT: float = 1.0
    #: The version of the project that a worker reports, at most 32 characters: a tag, or the start of a commit. With
    #: it the pages can show since which deploy a task fails. None: the version of this app.
    VERSION: str | None = None


#: The options of a task that are ours (see :class:`jobs.Task`). Extensions have more.
TASK_OPTIONS = "atomic max_crashes idempotency_key unique unique_until unique_for".split()


@cache
def every() -> Any:
    """All keys of ``settings.JOBS`` as a dataclass: the core's, and those of extensions."""
    kinds = (*(module.Settings for module in reversed(extensions.settings())), Settings)
    return dataclass(frozen=True, kw_only=True)(type("Settings", kinds, {}))


@cache
def problems() -> list[str]:
    """What is wrong with ``settings.JOBS``: one sentence for each problem, with the cure. Extensions look for them."""
    given = getattr(django_settings, "JOBS", {})
    looks = [module.problems for module in extensions.settings() if hasattr(module, "problems")]
    return [says for look in looks for says in look(given)]


def task_option_names() -> list[str]:
    """Our options of a task: the core's, and those of extensions."""
    return [*TASK_OPTIONS, *extensions.merged("options")]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the nearest known name, or a full stop."""
    # Names of settings are in capitals.
    close = get_close_matches(name, known, 1) or get_close_matches(name.upper(), known, 1)
    return f": did you mean `{close[0]}`?" if close else "."


@cache
def own_tasks() -> frozenset[str]:
    """The tasks of this app: extensions list them (``TASKS``)."""
    listed = [getattr(import_module(name), "TASKS", ()) for name in extensions.folders()]
    return frozenset[str]().union(*listed)


@lru_cache(maxsize=1000)
def is_stock(name: str | None) -> bool:
    """Whether the task of this name is left to Celery: a built-in, or one of ``JOBS["EXCLUDE"]``."""
    # A class that is not registered has no name.
    name = name or ""
    return name.startswith("celery.") or any(fnmatchcase(name, pattern) for pattern in conf().EXCLUDE)


def is_ours(task: Any) -> bool:
    """Whether calls of the task are jobs."""
    return getattr(task, "is_transactional", False) and not is_stock(task.name)


def task_options(name: str) -> dict[str, Any]:
    """The options that ``JOBS["TASKS"]`` has for the task of this name."""
    # Our own jobs rely on their options.
    given = () if name in own_tasks() else conf().TASKS.items()
    return {key: value for pattern, each in given if fnmatchcase(name, pattern) for key, value in each.items()}


@cache
def conf() -> Settings:
    """The settings in force; ``ImproperlyConfigured`` lists all that is wrong with them."""
    if found := problems():
        raise ImproperlyConfigured(" ".join(found))
    return made(getattr(django_settings, "JOBS", {}))


def made(given: dict[str, Any]) -> Settings:
    """The settings with these keys; a time may also be a timedelta."""

    def plain(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [plain(each) for each in value]
        return value.total_seconds() if isinstance(value, timedelta) else value

    found: Settings = every()(**{name: plain(value) for name, value in given.items()})
    return found


def _forget(*, setting: str, **kwargs: Any) -> None:
    problems.cache_clear()
    if setting == "JOBS":
        conf.cache_clear()
        is_stock.cache_clear()
    _without.cache_clear()


setting_changed.connect(_forget, dispatch_uid="jobs.conf")


def celery_settings(broker_url: str = "jobs://", prefix: str = "") -> dict[str, Any]:
    """Celery settings with which a worker survives an outage of its broker, and loses no message of a stock task in it.

    In Django's settings, for an app with ``config_from_object("django.conf:settings", namespace="CELERY")``;
    what you assign below that line wins (elsewhere: ``app.conf.update(celery_settings("redis://localhost/0"))``)::

        globals().update(celery_settings("redis://localhost/0", prefix="CELERY_"))

    Parameters:
        broker_url: ``jobs://`` (the database), ``redis[s]://``, ``sentinel://`` or ``amqp[s]://``.
        prefix: the namespace of your app's settings, with its underscore; the names are in upper case then.
    """
    result: dict[str, Any] = {
        "broker_url": broker_url,
        # A job's row has its result; results of other tasks go into a table of their own.
        "result_backend": "jobs.backend:Backend",
        # For tasks that are no jobs. A message is acknowledged after its run. If its process died in the run, it is not
        # delivered again: no counter would limit how often.
        "task_acks_late": True,
        "task_acks_on_failure": True,
        "task_acks_on_timeout": True,
        "task_reject_on_worker_lost": False,
        "worker_prefetch_multiplier": 1,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_lost_wait": 2.0,
        # A body that never ends would block its process for ever.
        "task_time_limit": 1800,
        "task_soft_time_limit": 1740,
        # Workers survive an outage of the broker.
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_channel_error_retry": True,
    }
    scheme = broker_url.partition("://")[0].partition("+")[0]
    if scheme in ("redis", "rediss", "sentinel"):
        result["broker_transport_options"] = {
            "socket_connect_timeout": 3,
            "socket_keepalive": True,
            "unacked_restore_interval": 5,
            "unacked_restore_throttle": 1,
        }
    elif scheme in ("amqp", "amqps", "pyamqp", "librabbitmq"):
        # Without confirms a broker in trouble loses messages; without the timeouts its memory alarm blocks the
        # sender for ever.
        result["broker_transport_options"] = {"confirm_publish": True, "read_timeout": 10, "write_timeout": 10}
    return {f"{prefix}{name.upper()}": value for name, value in result.items()} if prefix else result


# The project's Celery app, for code that is not given one: commands, checks, rescue


def app_here() -> Celery:
    """The app of this process: the project's, or Celery's fallback."""
    app: Celery = current_app._get_current_object()
    return app


def celery_app() -> Celery | None:
    """The app that the project made; None if there is only Celery's fallback, which has no tasks and no broker."""
    app = app_here()
    return None if app.main == "default" and not app.set_as_current else app


_imports = threading.RLock()
_imported: weakref.WeakSet[Celery] = weakref.WeakSet()


def import_tasks(app: Celery) -> None:
    """Import the modules of the app's tasks, once; raises what they raise."""
    with _imports:
        if app in _imported:
            return
        # Celery runs Django's checks before it imports the tasks, and our checks call this function again.
        _imported.add(app)
        try:
            app.loader.import_default_modules()
        except BaseException:
            _imported.discard(app)
            raise


def loaded_app() -> Celery | None:
    """The project's app, with the tasks of its modules imported."""
    app = celery_app()
    try:
        if app is not None:
            import_tasks(app)
    except Exception:
        # A process that cannot import all of them (a web server without a worker's libraries) goes on with what it has.
        logger.debug("not all tasks can be imported here", exc_info=True, extra={"action": "tasks_unknown"})
    return app


#: The names under which Celery looks for the setting.
_EAGER = ("task_always_eager", "CELERY_TASK_ALWAYS_EAGER", "CELERY_ALWAYS_EAGER")


def is_eager(app: Celery) -> bool:
    """Celery's ``task_always_eager``. Every call asks, and if it is not set anywhere, Celery's own look takes 10 us."""
    config = app.conf
    # Both may be changed at any time.
    given = config.changes, vars(cast(Any, django_settings)._wrapped)
    if _without(app, id(config)) is config and not any(name in each for each in given for name in _EAGER):
        return False
    return bool(config.task_always_eager)


@lru_cache(maxsize=10)
def _without(app: Celery, config_id: int) -> Any:
    """The app's configuration if no source of it sets the name; kept, so that its id is not reused."""
    # This comes first: it loads the settings.
    if app.conf.task_always_eager or app.namespace not in (None, "CELERY"):
        return None
    return None if any(name in source for source in app.conf.maps[:-1] for name in _EAGER) else app.conf


def reads_rows(app: Celery) -> bool:
    """Whether the app's result backend is ours."""
    return str(app.conf.result_backend).startswith("jobs.backend")
