"""The part of Django's tasks in the core."""

from __future__ import annotations

import sys
from typing import Any

from jobs.doors import Extension


class DjangoTasks(Extension):
    def ready(self) -> None:
        """Those that were declared before there were models become Celery tasks."""
        if (module := sys.modules.get("jobs.django_tasks.task_backend")) is not None:
            module.make_celery_tasks()

    def find(self, job: Any) -> Any:
        """One of Django's tasks may be declared anywhere: its module is imported for its job."""
        if (alias := job.django_task) is None:
            return None
        from jobs.django_tasks import task_backend

        return task_backend.find(job.task, alias)
