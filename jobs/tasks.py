"""The app's own tasks; ``app.autodiscover_tasks()`` finds them."""

from __future__ import annotations

from typing import Any

from celery import shared_task
from celery.exceptions import SoftTimeLimitExceeded
from kombu.exceptions import OperationalError

from jobs.calling import followups
from jobs.task import Task


@shared_task(base=Task, bind=True, name="jobs.probe")
def probe(self: Any) -> str:
    """Do nothing, and say where: ``manage.py jobs doctor`` follows it from the call to the end."""
    return str(self.job.node_id)


@shared_task(
    base=Task,
    bind=True,
    name="jobs.ended",
    ignore_result=True,
    # A result backend of the project's own may be away.
    autoretry_for=(Exception,),
    max_retries=30,
    retry_backoff=True,
    retry_backoff_max=600,
)
def ended(self: Any, job_id: str, lease: int) -> None:
    """Tell those who wait for a job that it has ended, unless somebody runs it again."""
    followups.tell_of(self.app, self.job._state.db, job_id, lease)


# It fails because another job failed: one more attempt would not help.
@shared_task(base=Task, bind=True, name="jobs.same", max_retries=0)
def same(self: Any, job_id: str) -> Any:
    """End as a job ends that does the same work: a unique task that is part of a chain, a group or a chord."""
    return followups.end_as(self, job_id)


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
    """Send a message for a task that is none of ours, at least once."""
    self.app.send_task(name, args, kwargs, **{**options, "retry": False})
