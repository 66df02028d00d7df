"""The jobs of durable tasks: one that tells a parent of its children's end, and one that takes steps back."""

from __future__ import annotations

from typing import Any

from django.utils.module_loading import import_string

from jobs import Snooze, task
from jobs.contrib.durable.history import CHILDREN
from jobs.contrib.durable.models import Step
from jobs.contrib.waking import waking
from jobs.models import LIVE, Job
from jobs.models.values import decoded


@task(bind=True, name="jobs.wake", ignore_result=True)
def wake(self: Any, job_id: str, name: str) -> None:
    """Let a durable task whose children have ended go on, if the last child has not woken it."""
    using = str(self.job._state.db)
    job = Job.objects.using(using).filter(pk=job_id, state__in=LIVE).first()
    if job is None or not Step.objects.using(using).filter(job=job_id, name=name, state=Step.State.WAITING).exists():
        return
    if not str(job.waits_for).startswith(CHILDREN) or not waking.wake(str(job.waits_for), using):
        # Race: it is about to wait, or to go on.
        raise Snooze(min(60.0, 0.5 * 2 ** min(self.job.snoozes, 8)), f"{job_id} is about to wait for its children")


@task(bind=True, durable=True, name="jobs.compensate", ignore_result=True)
def compensate(self: Any, job_id: str, done: list[dict[str, Any]]) -> None:
    """Take back what a cancelled job has done: the ``on_cancel=`` of its steps, in reverse order, each a step."""
    for undo in done:
        name = f"undo {undo['name'].replace('#', ' ')}"[:240]
        self.step(name, import_string(undo["function"]), *decoded(undo["args"]), **decoded(undo["kwargs"]))
