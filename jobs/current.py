"""Which job this code runs in."""

from __future__ import annotations

from typing import Any

from celery._state import get_current_task


def current_run() -> Any:
    """The run (``jobs.execution.Run``) whose body is calling, or None."""
    task: Any = get_current_task()
    request = task.request_stack.top if task is not None else None
    return getattr(request, "jobs_run", None) or None


def current_job() -> Any:
    """The row of the job whose body is calling, as it was claimed, or None."""
    run = current_run()
    return run.job if run is not None else None
