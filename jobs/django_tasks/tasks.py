"""The Celery tasks of those that were declared before there were models."""

import sys

if (module := sys.modules.get("jobs.django_tasks.task_backend")) is not None:
    module.make_celery_tasks()
