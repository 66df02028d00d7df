"""The job that ends as another one does: a unique task in a chain, a group or a chord, whose key is taken."""

from __future__ import annotations

from typing import Any

from celery import shared_task
from celery.exceptions import TaskPredicate

from jobs.calling import outbox
from jobs.contrib.results.endings import exception_of, instead_of
from jobs.errors import Snooze, UniqueTaken
from jobs.models import ENDED, Job, State
from jobs.models.values import decoded
from jobs.task import Task

#: Options that make a call part of a canvas.
_IN_CANVAS = frozenset({"link", "link_error", "chain", "chord", "group_id"})


def stand_in(call: Job, holder: Job, using: str) -> Job | None:
    """Turn a call that need not run into a job that ends as the holder of its key does, and insert it."""
    if outbox.following.get() is None and _IN_CANVAS.isdisjoint(call.options):
        return None
    # The end of the other job would start no follow-ups of this call, and wake no caller that waits for its id.
    free = dict.fromkeys(("unique_key", "unique_until", "unique_expires_at", "expires_at", "marker_key"))
    call.__dict__.update(free, task="jobs.same", args=[str(holder.pk)], kwargs={})
    outbox.insert([call], using)
    return call


# It fails because another job failed: one more attempt would not help.
@shared_task(base=Task, bind=True, name="jobs.same", max_retries=0)
def same(self: Any, job_id: str) -> Any:
    """End as a job ends that does the same work: a unique task that is part of a chain, a group or a chord."""
    job = Job.objects.using(self.job._state.db).filter(pk=job_id).first()
    if job is None:
        raise UniqueTaken(f"the job {job_id}, which did the work, was deleted")
    if isinstance(job.options, dict) and job.options.get("replaced") and job.result is None:
        job = instead_of(job.pk, job.replay_of, str(job._state.db))
    if job is None or job.state not in ENDED:
        raise Snooze(min(60, 0.5 * 1.5 ** min(self.job.snoozes, 12)), f"the job {job_id} does the same work")
    if job.state == State.SUCCEEDED:
        return decoded(job.result)
    exc = exception_of(job.error or {}, self.backend)
    # ``Busy`` and its like would snooze or cancel this job if its body raised them.
    raise RuntimeError(str(exc)) if isinstance(exc, TaskPredicate) else exc
