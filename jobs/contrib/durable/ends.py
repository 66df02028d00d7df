"""The end of a job: of a child, whose parent may go on, and of a durable one, whose steps may have to be taken back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from django.db import transaction

from jobs.conf import app_here
from jobs.contrib.durable import signals
from jobs.contrib.durable.history import wake_parent
from jobs.contrib.durable.models import Signal, Step
from jobs.contrib.stock_calls.sending import add_own

#: The types of the errors of jobs that were cancelled.
CANCELLED = ("Cancelled", "Expired", "Killed", "Revoked")


def after_child(job: Any) -> None:
    """After the commit: let the parent go on, if this was the last child of a durable task."""
    using = str(job._state.db)
    transaction.on_commit(partial(wake_parent, job.batch_id, using), using=using, robust=True)


def of(job: Any, error: Mapping[str, Any]) -> Callable[[], None] | None:
    """What to write in the transaction that ends a job without success."""
    using, task = str(job._state.db), app_here().tasks.get(job.task)
    if task is not None and not getattr(task, "durable", False):
        return None if getattr(job, "batch_id", None) is None else lambda: after_child(job)
    steps, batch_id = Step.objects.using(using).filter(job=job.pk), getattr(job, "batch_id", None)
    done = steps.filter(on_cancel__isnull=False, state=Step.State.DONE).order_by("-pk")
    undo = [{**row.on_cancel, "name": row.name} for row in done] if error["type"] in CANCELLED else []
    waited = list(steps.filter(kind=Step.Kind.WAIT, state=Step.State.WAITING).values_list("key", flat=True))
    if not undo and not waited and batch_id is None:
        return None

    def write() -> None:
        if undo:
            # It carries all that it needs: the job may be deleted before it runs.
            add_own("jobs.compensate", [str(job.pk), undo], using, job.queue, job)
        for key in waited:
            # The job may have been woken for a signal that it did not take.
            transaction.on_commit(partial(signals.wake_if_there, key, using), using=using, robust=True)
        if batch_id is not None:
            after_child(job)

    return write


def forget(of: Any, using: str) -> None:
    """Jobs are about to be deleted (see the door ``deleting``)."""
    Step.objects.using(using).filter(of("job"))._raw_delete(using)
    Signal.objects.using(using).filter(of("taken_by"))._raw_delete(using)
