"""Retries for tasks that declare none themselves: ``JOBS["RETRY"]``.

For a task that declares them (``retry_backoff=``) Celery itself computes the pause, and calls ``Task.retry()``.
"""

from __future__ import annotations

import random

import celery

from jobs.conf import conf
from jobs.contrib.passing.passing import may_pass
from jobs.lifecycle.run import Run

#: The options with which a task says what is retried, and how often. Celery reads some without declaring them.
OF_RETRIES = (
    "autoretry_for dont_autoretry_for max_retries default_retry_delay retry_backoff retry_backoff_max retry_jitter "
    "retry_kwargs".split()
)


def pause(run: Run, exc: BaseException) -> float | None:
    """Seconds until the job that raised it is tried again; None: it has failed for good."""
    if getattr(exc, "ends_job", False) or isinstance(exc, run.task.throws):
        return None
    if run.retries_itself or says_how_to_retry(run.task):
        return None
    return of_the_table(run.job.retries) if may_pass(exc) else None


def says_how_to_retry(task: celery.Task) -> bool:
    """Whether the task, or a base class of it, sets what is retried, or how often."""
    classes = (each for each in type(task).__mro__ if each is not celery.Task)
    return any(name in vars(each) for each in (task, *classes) for name in OF_RETRIES)


def of_the_table(failures: int) -> float | None:
    """Seconds until the next attempt, after so many that failed before; None: the table is at its end."""
    table = conf().RETRY or ()
    # Jobs that failed together do not come back together.
    return random.uniform(0.75, 1.25) * table[failures] if failures < len(table) else None
