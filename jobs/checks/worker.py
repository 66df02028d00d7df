"""Checks of a worker: its pool, its tasks, and its broker as soon as that is there."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from celery import signals
from django.core.checks import CheckMessage, Error, Warning

from jobs.checks.base import USE_CELERY_SETTINGS, careful, databases, several
from jobs.checks.celery import driver
from jobs.conf import conf, problems

if TYPE_CHECKING:
    from celery import Celery

logger = logging.getLogger("jobs")

#: Seconds that the question for Redis' settings may take.
ASK_REDIS = 1.0


@careful
def check_worker(worker: Any) -> Iterator[CheckMessage]:
    pool = _pool(worker)
    if pool in ("gevent", "eventlet"):
        yield Error(
            f"The worker pool {pool} is not supported.",
            hint="Use -P prefork, -P threads or -P solo: a transaction must not be shared by green threads.",
            id="jobs.E003",
        )
    if getattr(worker, "pool_start_method", "fork") != "fork":
        yield Error(
            "worker_pool_start_method is not 'fork': the pool's processes would not know the node they belong to, and "
            "could claim no job.",
            hint="Remove the setting.",
            id="jobs.E011",
        )
    for alias, database in databases():
        name = str(database.get("NAME"))
        if database["ENGINE"].endswith("sqlite3") and (":memory:" in name or "mode=memory" in name):
            yield Error(
                f"The SQLite database {alias!r} is in memory: the worker's processes would each have another one.",
                hint="Give it a file as NAME.",
                id="jobs.E012",
            )
    if not getattr(worker.app.Task, "is_transactional", False):
        yield Warning(
            "The app's task_cls is not jobs.Task: only tasks with base=jobs.Task are transactional.",
            hint='Use Celery("proj", task_cls="jobs.task:Task"), or ignore this if it is what you want.',
            id="jobs.W001",
        )
    if getattr(worker, "prefetch_multiplier", 1) == 0:
        yield Warning(
            "worker_prefetch_multiplier is 0: a worker takes the whole queue into its memory. The relay finds the "
            "queue empty, takes the jobs for lost, and publishes copies of them.",
            hint=USE_CELERY_SETTINGS.format(name="worker_prefetch_multiplier", value=1),
            id="jobs.W012",
        )


@careful
def check_tasks(worker: Any) -> Iterator[CheckMessage]:
    """What the tasks of the worker's app tell."""
    app = worker.app
    tasks = {name: task for name, task in app.tasks.items() if not name.startswith("celery.")}
    ours = {name: task for name, task in tasks.items() if is_ours(task)}
    default_limit = getattr(worker, "time_limit", None) or app.conf.task_time_limit
    odd = [name for name, task in ours.items() if task.serializer not in ("json", "application/json")]
    if odd:
        yield Error(
            f"These tasks have another serializer than JSON, and every call of them would raise: {several(odd)}.",
            hint="Remove their option serializer, or the setting task_serializer.",
            id="jobs.E010",
        )
    unlimited = [name for name, task in ours.items() if not (task.time_limit or default_limit)]
    if unlimited and _pool(worker) == "prefork":
        yield Warning(
            f"These tasks have no hard time limit: {several(unlimited)}. A body that never ends holds its process, "
            "and its job stays running for ever.",
            hint=USE_CELERY_SETTINGS.format(name="task_time_limit", value=1800),
            id="jobs.W011",
        )
    yield from _about_markers(ours)
    kind = driver(app)
    if kind == "redis":
        timeout = float((app.conf.broker_transport_options or {}).get("visibility_timeout") or 3600)
        limits = {name: task.time_limit or default_limit for name, task in tasks.items() if name not in ours}
        long = [name for name, limit in limits.items() if limit and limit > timeout]
        if long:
            yield Warning(
                f"Redis delivers a message again after visibility_timeout = {timeout:g} s, and these tasks may run for "
                f"longer and are no jobs: {several(long)}. They would run twice at a time.",
                hint="Make them jobs, or set visibility_timeout in broker_transport_options above their time limits.",
                id="jobs.W010",
            )
    elif kind == "memory":
        yield Warning(
            "The broker is memory://, which no other process shares: retries, due jobs and rescued ones would be "
            "published to nobody.",
            hint="Use jobs:// where there is no broker.",
            id="jobs.W014",
        )


def _about_markers(tasks: dict[str, Any]) -> Iterator[CheckMessage]:
    """A marker that is gone keeps nobody from doing the same again."""
    if problems():
        # E001 says so.
        return
    kept, failed = conf().MARKER_RETENTION, conf().RETENTION_FAILED
    marked = {name: task for name, task in tasks.items() if "idempotency_key" in task.key_templates}
    if kept is None or not marked:
        return
    late = [name for name, task in marked.items() if retry_horizon(task) > kept]
    if failed is None or failed > kept:
        late = list(marked)
    if late:
        yield Warning(
            f"Markers are kept for {kept:g} s, and jobs of these tasks may still be retried, or replayed by hand, "
            f"after that time: {several(late)}. What they do could be done twice.",
            hint="Set JOBS['MARKER_RETENTION'] above JOBS['RETENTION_FAILED'] and above all their retries; None keeps "
            "them.",
            id="jobs.W017",
        )


def retry_horizon(task: Any) -> float:
    """Seconds until a task that always fails is given up, as far as its options tell."""
    if task.max_retries is None:
        return float("inf")
    pause = getattr(task, "retry_backoff_max", 600) if getattr(task, "retry_backoff", False) else None
    return float(task.max_retries * (task.default_retry_delay if pause is None else pause))


def is_ours(task: Any) -> bool:
    return getattr(task, "is_transactional", False) and not task.is_stock()


def _pool(worker: Any) -> str:
    pool = worker.pool_cls if isinstance(worker.pool_cls, str) else worker.pool_cls.__module__
    return str(pool.partition(":")[0].rpartition(".")[2])


@signals.worker_ready.connect(dispatch_uid="jobs.checks")
def _on_ready(sender: Any = None, **kwargs: Any) -> None:
    """Only now, when the broker is there: a question must hold up nobody's start."""
    app = getattr(sender, "app", None)
    if app is None or not any(is_ours(task) for task in app.tasks.values()):
        return
    for message in check_redis(app):
        if not message.is_silenced():
            logger.log(message.level, str(message), extra={"action": "check", "check": message.id})


@careful
def check_redis(app: Celery) -> Iterator[CheckMessage]:
    """Ask the broker, once and for :data:`ASK_REDIS` seconds at most, whether it throws messages away."""
    if driver(app) != "redis":
        return
    options = {**(app.conf.broker_transport_options or {})}
    options |= {"socket_connect_timeout": ASK_REDIS, "socket_timeout": ASK_REDIS, "retry_on_timeout": False}
    try:
        with app.connection_for_write(transport_options=options) as connection:
            connection.ensure_connection(max_retries=0, timeout=ASK_REDIS)
            with connection.channel() as channel:
                memory = channel.client.info("memory")
    except Exception as exc:
        logger.debug("Redis does not say how it evicts: %r", exc, extra={"action": "check"})
        return
    policy = str(memory.get("maxmemory_policy", ""))
    # The other policies throw away only what has a time to live, and messages have none.
    if int(memory.get("maxmemory") or 0) and policy.startswith("allkeys"):
        yield Warning(
            f"The broker's Redis throws away messages when its memory is full (maxmemory-policy {policy}). Jobs are "
            "published again when their grace is over; links, chains and tasks that are no jobs are lost.",
            hint="Set maxmemory-policy noeviction, and keep the cache in another Redis.",
            id="jobs.W013",
        )
