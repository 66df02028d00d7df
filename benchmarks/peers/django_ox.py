"""django-ox: a database backend of Django's own tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from benchmarks.peers.peer import Peer, manage, truncate


@dataclass(frozen=True, kw_only=True)
class DjangoOx(Peer):
    drained: int = 3_000
    is_transactional: ClassVar[bool] = True
    packages: ClassVar[tuple[str, ...]] = ("django-ox",)

    def settings(self) -> dict[str, Any]:
        return {"INSTALLED_APPS": ["django_ox"], "TASKS": {"default": {"BACKEND": "django_ox.backend.OxBackend"}}}

    def task(self, body: Callable[[int], Any]) -> Any:
        from django.tasks import task

        return task()(body)

    def enqueue(self, task: Any, number: int) -> None:
        task.enqueue(number)

    def bulk(self, task: Any, numbers: Sequence[int]) -> None:
        from django_ox.bulk import enqueue_many

        enqueue_many(task, [([number], {}) for number in numbers])

    def purge(self) -> None:
        from django.apps import apps

        truncate(model._meta.db_table for model in apps.get_app_config("django_ox").get_models())

    def workers(self, processes: int) -> list[list[str]]:
        return [manage("ox_worker", "--processes", str(processes))]


PEERS = (DjangoOx(name="django-ox"),)
