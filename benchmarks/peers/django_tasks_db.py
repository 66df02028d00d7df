"""django-tasks-db: the database backend of Django's own tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar

from benchmarks.peers.peer import Peer, manage, truncate


@dataclass(frozen=True, kw_only=True)
class DjangoTasksDb(Peer):
    drained: int = 3_000
    is_transactional: ClassVar[bool] = True
    packages: ClassVar[tuple[str, ...]] = ("django-tasks-db", "django-tasks")

    def settings(self) -> dict[str, Any]:
        backport = [] if find_spec("django.tasks") else ["django_tasks"]
        backend = {"BACKEND": "django_tasks_db.DatabaseBackend"}
        return {"INSTALLED_APPS": [*backport, "django_tasks_db"], "TASKS": {"default": backend}}

    def task(self, body: Callable[[int], None]) -> Any:
        tasks = import_module("django.tasks" if find_spec("django.tasks") else "django_tasks")
        return tasks.task()(body)

    def enqueue(self, task: Any, number: int) -> None:
        task.enqueue(number)

    def purge(self) -> None:
        from django_tasks_db.models import DBTaskResult

        truncate([DBTaskResult._meta.db_table])

    def workers(self, processes: int) -> list[list[str]]:
        names = [f"worker{number}" for number in range(processes)]
        return [manage("db_worker", "--no-startup-delay", "-v", "0", "--worker-id", name) for name in names]


PEERS = (DjangoTasksDb(name="django-tasks-db"),)
