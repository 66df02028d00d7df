"""Django's tasks as jobs: ``TASKS = {"default": {"BACKEND": "jobs.django_tasks.JobsBackend"}}``."""

from typing import TYPE_CHECKING, Any

PART_OF = ("jobs.contrib.results",)

if TYPE_CHECKING:
    from jobs.django_tasks.task_backend import JobsBackend

__all__ = ["JobsBackend"]


def __getattr__(name: str) -> Any:
    # Imported late: the core reads this package's doors also if neither Django nor ``django-tasks`` provides tasks.
    if name in __all__:
        from jobs.django_tasks import task_backend

        return getattr(task_backend, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
