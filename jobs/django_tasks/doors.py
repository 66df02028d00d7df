"""The part of Django's tasks in the core."""

from __future__ import annotations

import sys
from typing import Any

from jobs.doors import Extension


class DjangoTasks(Extension):
    def ready(self) -> None:
        """Make Celery tasks of the tasks that were declared before the models were loaded."""
        if (module := sys.modules.get("jobs.django_tasks.task_backend")) is not None:
            module.make_celery_tasks()

    def find(self, job: Any) -> Any:
        """A Django task may be declared in any module: import that module for its job."""
        if (alias := job.django_task) is None:
            return None
        from jobs.django_tasks import task_backend

        return task_backend.find(job.task, alias)
