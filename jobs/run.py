"""One claimed run of a job: what the pipeline, the body and the ledger of calls know of it."""

from __future__ import annotations

import time
from typing import Any

from jobs import databases, lifecycle, logs, reports
from jobs.board import Slot
from jobs.errors import Cancel, LostLease
from jobs.models import Job


class Run:
    """One claimed run of a job."""

    def __init__(self, task: Any, request: Any, job: Job, slot: Slot) -> None:
        self.task = task
        self.request = request
        self.job = job
        #: Where the process shows what it runs.
        self.slot = slot
        self.using: str = job._state.db or databases.home()
        #: What ``Task.retry()`` sent: the last is this job again, and each other one becomes a job of its own.
        self.planned: list[Job] = []
        #: The fencing token of the task's own lock.
        self.lock_token: int | None = None
        #: What became of it, in one word, as the log says it; None while that is not known.
        self.outcome: str | None = None
        #: OpenTelemetry's, with the run's span.
        self.context: Any = None
        #: When the body began, on the monotonic clock.
        self.began = time.monotonic()

    def is_retry(self, call: Job) -> bool:
        """Whether a call of the task is ``Task.retry()`` sending this very job again."""
        return call.pk == self.job.pk and call.retries == self.job.retries + 1

    def log(self, level: int, text: str, action: str) -> None:
        logs.log(level, self.job, text, action)

    def report(self, level: int, text: str, action: str, **more: Any) -> None:
        """Say what became of the run, in the log and by a signal."""
        runtime = round(time.monotonic() - self.began, 6)
        self.outcome = reports.report(self.job, self.using, action, text, level, runtime=runtime, **more)


def checkpoint(run: Run) -> None:
    """Ask the database whether this run should go on.

    Raises:
        Cancel: somebody asked the job to end.
        LostLease: the job was given to another run.
    """
    if (note := lifecycle.asked_to_end(run.job)) is not None:
        raise Cancel(note.reason)
    if not lifecycle.owns(run.job):
        raise LostLease("this run lost its lease")
