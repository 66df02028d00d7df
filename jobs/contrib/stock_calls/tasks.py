"""The job that sends a message."""

from __future__ import annotations

from typing import Any

from celery import shared_task
from celery.exceptions import SoftTimeLimitExceeded
from kombu.exceptions import OperationalError

from jobs.task import Task


@shared_task(
    base=Task,
    bind=True,
    name="jobs.send",
    atomic=False,
    ignore_result=True,
    # A broker may take the call and say nothing.
    soft_time_limit=30,
    time_limit=60,
    autoretry_for=(OperationalError, OSError, SoftTimeLimitExceeded),
    max_retries=None,
    retry_backoff=True,
    retry_backoff_max=60,
)
def send(self: Any, name: str, args: list[Any], kwargs: dict[str, Any], options: dict[str, Any]) -> None:
    """Send a message for a task that is not ours, at least once."""
    self.app.send_task(name, args, kwargs, **{**options, "retry": False})
