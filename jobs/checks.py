"""System checks: settings under which the promise does not hold. ``manage.py check`` and every worker run them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

from jobs import conf


@register("jobs")
def check_settings(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> list[CheckMessage]:
    return [Error(problem, id="jobs.E001", hint="See jobs/conf.py for every key.") for problem in conf.problems()]


@register("jobs")
def check_sqlite(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """A transaction that begins as a reader and then writes fails at once when another one wrote."""
    found: list[CheckMessage] = []
    if conf.problems():
        return found
    for alias in conf.conf().DATABASES:
        database = settings.DATABASES[alias]
        mode = str(database.get("OPTIONS", {}).get("transaction_mode") or "").upper()
        if database["ENGINE"].endswith("sqlite3") and mode not in ("IMMEDIATE", "EXCLUSIVE"):
            found.append(
                Error(
                    f"The SQLite database {alias!r} does not use IMMEDIATE transactions.",
                    hint=(
                        "Set OPTIONS = {'transaction_mode': 'IMMEDIATE', 'timeout': 20, "
                        "'init_command': 'PRAGMA journal_mode=WAL'}."
                    ),
                    id="jobs.E002",
                )
            )
    return found


@register("jobs")
def check_time_zones(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> list[CheckMessage]:
    if settings.USE_TZ:
        return []
    return [
        Error(
            "Jobs need USE_TZ = True: naive times are ambiguous when clocks change.",
            hint="Set USE_TZ = True; TIME_ZONE may be whatever you like.",
            id="jobs.E004",
        )
    ]


def for_worker(worker: Any) -> list[CheckMessage]:
    """What a worker checks before it starts; Celery itself runs Django's checks and throws the result away."""
    found = [*check_settings(), *check_sqlite(), *check_time_zones()]
    pool = worker.pool_cls if isinstance(worker.pool_cls, str) else worker.pool_cls.__module__
    if pool.rpartition(".")[2] in ("gevent", "eventlet"):
        found.append(
            Error(
                f"The worker pool {pool.rpartition('.')[2]} is not supported.",
                hint="Use -P prefork, -P threads or -P solo: a transaction must not be shared by green threads.",
                id="jobs.E003",
            )
        )
    if not getattr(worker.app.Task, "is_transactional", False):
        found.append(
            Warning(
                "The app's task_cls is not jobs.Task: only tasks with base=jobs.Task are transactional.",
                hint='Use Celery("proj", task_cls="jobs.task:Task"), or ignore this if it is what you want.',
                id="jobs.W001",
            )
        )
    return found
