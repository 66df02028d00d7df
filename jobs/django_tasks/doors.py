"""The part of Django's tasks in the core."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from jobs.doors import Extension

#: A header of the jobs of Django's tasks: the alias of the backend that it was enqueued with.
HEADER = "django_task"

#: What Django's signals tell of.
TOLD = ("started", "succeeded", "failed", "cancelled")


def alias_of(job: Any) -> str | None:
    """The alias of the backend that one of Django's tasks was enqueued with; None for a task of Celery's."""
    return job.headers.get(HEADER)


class DjangoTasks(Extension):
    def ready(self) -> None:
        """Make Celery tasks of the tasks that were declared before the models were loaded."""
        if (module := sys.modules.get("jobs.django_tasks.task_backend")) is not None:
            module.make_celery_tasks()

    def find(self, job: Any) -> Any:
        """A Django task may be declared in any module: import that module for its job."""
        if (alias := alias_of(job)) is None:
            return None
        from jobs.django_tasks import task_backend

        return task_backend.find(job.task, alias)

    def happened(self, jobs: Iterable[Any], using: str, action: str) -> None:
        # Without a backend of ours in this process no receiver waits.
        if (module := sys.modules.get("jobs.django_tasks.task_backend")) is not None and action in TOLD:
            for job in jobs:
                # Each run of each job comes here.
                if isinstance(job.options, dict) and "headers" in job.options and alias_of(job) is not None:
                    module.tell(job, action)

    def imports(self, job: Any) -> bool:
        return alias_of(job) is not None
