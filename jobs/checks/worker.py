"""Checks of a worker: its pool and its tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage, Error, Warning
from django.db import connections

from jobs.checks.base import USE_CELERY_SETTINGS, careful, databases, several
from jobs.conf import conf, problems


@careful
def check_worker(worker: Any) -> Iterator[CheckMessage]:
    pool = _pool(worker)
    if pool in ("gevent", "eventlet"):
        yield Error(
            f"The worker pool {pool} is not supported.",
            hint="Use -P prefork, -P threads or -P solo: a transaction must not be shared by green threads.",
            id="jobs.E003",
        )
    if pool == "prefork" and getattr(worker, "pool_start_method", "fork") != "fork":
        yield Error(
            "The pool's processes are not forked: they would not inherit the memory by which the worker knows what "
            "they run, and the pipe that wakes them.",
            hint="Set worker_pool_start_method = 'fork', or use -P threads.",
            id="jobs.E011",
        )
    for alias, database in databases():
        connection = connections[alias]
        if connection.vendor == "mysql" and not connection.features.has_select_for_update_skip_locked:
            yield Error(
                f"The server of the database {alias!r} cannot skip locked rows: claims would wait for each other.",
                hint="Use MySQL 8.0.1, MariaDB 10.6 or newer.",
                id="jobs.E015",
            )
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
    limited = [name for name, task in ours.items() if task.rate_limit]
    if limited and not app.conf.worker_disable_rate_limits:
        yield Error(
            f"These tasks have a rate_limit, which is not part of the claim yet: {several(limited)}. They would run as "
            "fast as they can.",
            hint="Remove it, and give them a queue whose worker has few processes.",
            id="jobs.E014",
        )
    yield from _about_markers(ours)


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
