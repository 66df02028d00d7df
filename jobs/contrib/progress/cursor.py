"""Where the next run of a long body goes on: ``Job.save_cursor``."""

from __future__ import annotations

from functools import partial
from typing import Any

from jobs.errors import LostLease
from jobs.lifecycle.run import current_run
from jobs.models import Job
from jobs.models.values import decoded, jsonable
from jobs.store import databases
from jobs.store.base import owned


def save_cursor(job: Job, value: Any) -> None:
    """See ``Job.save_cursor``. The fence is that of every finish: a zombie finds no row."""
    kept = jsonable(value, "the cursor")
    run = current_run()
    if run is not None and run.job is job and run.is_atomic:
        raise TypeError(
            f"{job.task} has one transaction, which is committed at its end: to save a cursor on the way declare the "
            "task with atomic=False, and give each part of its work a transaction (with transaction.atomic(): ...)"
        )
    update = partial(owned(job).update, cursor=kept)
    if not job._state.adding and databases.patiently(str(job._state.db), update) != 1:
        raise LostLease("this run lost its lease; what it does in this transaction is rolled back")
    job.cursor = decoded(kept)
