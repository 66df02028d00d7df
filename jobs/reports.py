"""What became of a run: one line in the log, and one signal."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from typing import Any

from django.db import connections, transaction

from jobs import signals
from jobs.logs import log
from jobs.models import Job, State


def report(job: Job, using: str, action: str, text: str, level: int = logging.INFO, **more: Any) -> str:
    """Say what became of a run, after its settle was committed; returns it in one word.

    The row decides, not what was wanted: a run that asked for a retry may have been asked to end, and a job that
    should go back may have reached its limit.

    Parameters:
        action: ``succeeded``, ``retried``, ``failed``, ``cancelled``, or why it waits again: see ``signals.rescued``.
    """
    error = error_of_run(job)
    if job.state == State.CANCELLED and action != "cancelled":
        action, text, level = "cancelled", "cancelled: it was asked to end", logging.INFO
    elif job.state == State.FAILED and action != "failed":
        assert error is not None
        action, text, level = "failed", f"failed: {error['type']}: {error['message']}", logging.ERROR
    log(level, job, text, action, **more)
    if action == "succeeded":
        signals.succeeded.tell(job, using)
    elif action in ("retried", "failed", "cancelled"):
        getattr(signals, action).tell(job, using, error=error)
    else:
        signals.rescued.tell(job, using, action=action, error=error)
    return action


def error_of_run(job: Job) -> dict[str, Any] | None:
    """The error that this run was settled with; that of an earlier run may still stand in the row."""
    error = job.error if isinstance(job.error, dict) else {}
    return error if error.get("attempt") == job.lease else None


def report_cancelled(ids: Sequence[uuid.UUID], using: str) -> None:
    """Jobs that waited were cancelled: tell after the commit. Reads their rows, and only if somebody listens."""
    if signals.cancelled.receivers and (connections[using].in_atomic_block or connections[using].get_autocommit()):

        def tell() -> None:
            for job in Job.objects.using(using).filter(pk__in=ids, state=State.CANCELLED):
                signals.cancelled.tell(job, using, error=job.error)

        transaction.on_commit(tell, using=using, robust=True)
