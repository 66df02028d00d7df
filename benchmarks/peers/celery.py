"""Bare Celery with ``delay_on_commit``: what most projects use.

Messages are acknowledged late, and rejected when the worker is lost: a queue that loses a job together with its worker
would be no peer. All other settings are Celery's defaults.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from benchmarks.peers.peer import Peer, broker_url, flush_redis, truncate


@dataclass(frozen=True, kw_only=True)
class Celery(Peer):
    #: Celery closes the connection to the database around each task. CELERY_DB_REUSE_MAX, which its documentation does
    #: not mention, keeps it.
    keeps_connections: bool = False

    #: Whether django-celery-results keeps the states of tasks in the database.
    has_results: bool = False

    drained: int = 4_000
    packages: ClassVar[tuple[str, ...]] = ("celery", "kombu", "django-celery-results")

    def settings(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "CELERY_BROKER_URL": broker_url(self.broker),
            "CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP": True,
            "CELERY_TASK_ACKS_LATE": True,
            "CELERY_TASK_REJECT_ON_WORKER_LOST": True,
        }
        if not self.has_results:
            return found | {"CELERY_TASK_IGNORE_RESULT": True}
        return found | {"CELERY_RESULT_BACKEND": "django-db", "INSTALLED_APPS": ["django_celery_results"]}

    def app_options(self) -> dict[str, Any]:
        return {}

    def app_settings(self) -> dict[str, Any]:
        return {"CELERY_DB_REUSE_MAX": 1_000_000} if self.keeps_connections else {}

    def task(self, body: Callable[[int], None]) -> Any:
        from benchmarks.project.celery import app

        return app.task(body)

    def enqueue(self, task: Any, number: int) -> None:
        task.delay_on_commit(number)

    def purge(self) -> None:
        from benchmarks.project.celery import app

        app.control.purge()
        if self.broker == "redis":
            flush_redis()
        if self.has_results:
            truncate(["django_celery_results_taskresult"])

    def workers(self, processes: int) -> list[list[str]]:
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.project.celery", "worker"]
        return [[*command, "-c", str(processes), "-l", "WARNING"]]


PEERS = (
    Celery(name="celery-redis", broker="redis"),
    Celery(name="celery-redis-kept", broker="redis", keeps_connections=True, about="keeps its connections"),
    Celery(name="celery-redis-results", broker="redis", has_results=True, about="with django-celery-results"),
    Celery(name="celery-rabbitmq", broker="rabbitmq"),
    Celery(name="celery-rabbitmq-kept", broker="rabbitmq", keeps_connections=True, about="keeps its connections"),
)
