"""The jobs of durable tasks: one that tells a parent of its children's end, and one that takes steps back."""

from __future__ import annotations

from typing import Any

from django.utils.module_loading import import_string

from jobs import task
from jobs.contrib.durable.history import CHILDREN
from jobs.contrib.durable.models import Step
from jobs.lifecycle import transitions
from jobs.models import Job
from jobs.models.values import decoded


@task(bind=True, name="jobs.wake", ignore_result=True)
def wake(self: Any, job_id: str) -> None:
    """Let a durable task go on whose children have ended, if the last of them has not done so."""
    using = self.job._state.db
    job = Job.objects.using(using).filter(pk=job_id, waits_for__startswith=CHILDREN).first()
    if job is not None:
        transitions.wake(str(job.waits_for), using)


@task(bind=True, durable=True, name="jobs.compensate", ignore_result=True)
def compensate(self: Any, job_id: str) -> None:
    """Take back what a cancelled job has done: the ``on_cancel=`` of its steps, in reverse order, each a step."""
    rows = Step.objects.using(self.job._state.db).filter(job=job_id, state=Step.State.DONE, on_cancel__isnull=False)
    for row in rows.order_by("-pk"):
        undo = row.on_cancel
        name = f"undo {row.name.replace('#', ' ')}"[:240]
        self.step(name, import_string(undo["function"]), *decoded(undo["args"]), **decoded(undo["kwargs"]))
