"""Retries for tasks that declare none themselves: ``JOBS["RETRY"]``.

For a task that declares them (``retry_backoff=``) Celery itself computes the pause, and calls ``Task.retry()``.
"""

from __future__ import annotations

import random

from jobs.calling.options import says_how_to_retry
from jobs.conf import conf
from jobs.contrib.passing.passing import may_pass
from jobs.lifecycle.run import Run


def pause(run: Run, exc: BaseException) -> float | None:
    """Seconds until the job that raised it is tried again; None: it has failed for good."""
    if getattr(exc, "ends_job", False) or isinstance(exc, run.task.throws):
        return None
    if run.retries_itself or says_how_to_retry(run.task):
        return None
    return of_the_table(run.job.retries) if may_pass(exc) else None


def of_the_table(failures: int) -> float | None:
    """Seconds until the next attempt, after so many that failed before; None: the table is at its end."""
    table = conf().RETRY or ()
    # Jobs that failed together do not come back together.
    return random.uniform(0.75, 1.25) * table[failures] if failures < len(table) else None
