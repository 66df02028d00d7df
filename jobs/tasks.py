"""The app's own tasks; ``app.autodiscover_tasks()`` finds them."""

from __future__ import annotations

import uuid
from typing import Any

from celery import shared_task
from kombu.exceptions import OperationalError

from jobs.arguments import decoded
from jobs.calling import followups
from jobs.errors import Snooze, UniqueTaken
from jobs.lifecycle.board import board
from jobs.models import ENDED, Job
from jobs.task import Task


@shared_task(base=Task, name="jobs.probe")
def probe() -> str:
    """Do nothing, and say where: ``manage.py jobs doctor`` follows it from the call to the end."""
    return str(board.node)


@shared_task(base=Task, bind=True, name="jobs.ended", ignore_result=True)
def ended(self: Any, job_id: str, lease: int) -> None:
    """Tell those who wait for a job that it has ended, unless somebody runs it again."""
    rows = Job.objects.using(self.job._state.db).filter(pk=uuid.UUID(job_id), lease=lease, state__in=ENDED)
    if (job := rows.first()) is not None:
        followups.tell(self.app, job)


# What that one failed of is no failure of its own.
@shared_task(base=Task, bind=True, name="jobs.same", max_retries=0)
def same(self: Any, job_id: str) -> Any:
    """End as a job ends that does the same work: a unique task that is part of a chain, a group or a chord."""
    job = Job.objects.using(self.job._state.db).filter(pk=job_id).first()
    if job is None:
        raise UniqueTaken(f"the job {job_id}, which did the work, was deleted")
    if job.state not in ENDED:
        raise Snooze(min(60, 0.5 * 1.5 ** min(self.job.snoozes, 12)), f"the job {job_id} does the same work")
    if job.state == Job.State.SUCCEEDED:
        return decoded(job.result)
    raise followups.exception_of(job.error or {}, self.backend)


@shared_task(
    base=Task,
    bind=True,
    name="jobs.send",
    atomic=False,
    ignore_result=True,
    autoretry_for=(OperationalError, OSError),
    max_retries=None,
    retry_backoff=True,
    retry_backoff_max=60,
)
def send(self: Any, name: str, args: list[Any], kwargs: dict[str, Any], options: dict[str, Any]) -> None:
    """Send a message for a task that is none of ours, at least once."""
    self.app.send_task(name, args, kwargs, **{**options, "retry": False})
