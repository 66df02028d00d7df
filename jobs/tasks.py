"""The app's own tasks; ``app.autodiscover_tasks()`` finds them."""

from __future__ import annotations

from typing import Any

from celery import shared_task
from celery.exceptions import TaskPredicate

from jobs import extensions
from jobs.backend import exception_of
from jobs.errors import Snooze, UniqueTaken
from jobs.models import ENDED, UNSUCCESSFUL, Job, State
from jobs.models.values import decoded
from jobs.task import Task

# Extensions have tasks of their own.
tuple(extensions.modules("tasks"))


# It fails because another job failed: one more attempt would not help.
@shared_task(base=Task, bind=True, name="jobs.same", max_retries=0)
def same(self: Any, job_id: str) -> Any:
    """End as a job ends that does the same work: a unique task that is part of a chain, a group or a chord."""
    job = Job.objects.using(self.job._state.db).filter(pk=job_id).first()
    if job is None:
        raise UniqueTaken(f"the job {job_id}, which did the work, was deleted")
    job = _last_of(job)
    if job is None or job.state not in ENDED:
        raise Snooze(min(60, 0.5 * 1.5 ** min(self.job.snoozes, 12)), f"the job {job_id} does the same work")
    if job.state == State.SUCCEEDED:
        return decoded(job.result)
    exc = exception_of(job.error or {}, self.backend)
    # ``Busy`` and its like would snooze or cancel this job if its body raised them.
    raise RuntimeError(str(exc)) if isinstance(exc, TaskPredicate) else exc


def _last_of(job: Job) -> Job | None:
    """The job that ends this one: itself, what replaced it, or what failed before that; None: there is none yet."""
    if not (isinstance(job.options, dict) and job.options.get("replaced")) or job.result is not None:
        return job
    jobs, level = Job.objects.using(job._state.db), [job.pk]
    if job.replay_of:
        return jobs.filter(pk=job.replay_of).first()
    # Of a chain or a chord only the last call gets this job's id, and nothing calls it after a failure.
    while level:
        before = jobs.filter(parent_id__in=level, options__replaced_task_nesting__isnull=False)
        if (failed := before.filter(state__in=UNSUCCESSFUL).first()) is not None:
            return failed
        level = list(before.values_list("pk", flat=True))
    return None
