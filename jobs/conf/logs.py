"""The lines of the logger ``jobs``: what they are about stands in fields of the record, under stable names.

``action`` is in every line: what happened, in one word. ``job``, ``task`` and ``node`` are in every line about a job:
its id, its task's name, and the worker that runs or ran it, or that has its message (None: no worker had it yet); where
the row is known, ``queue`` and ``lease`` too. A line of a worker about itself has its id as ``node``.
"""

from __future__ import annotations

import logging
from typing import Any

from jobs.conf import sentry

logger = logging.getLogger("jobs")


def fields(job: Any) -> dict[str, Any]:
    """The fields of a line about this job."""
    node = None if job.node_id is None else str(job.node_id)
    return {"job": str(job.pk), "task": job.task, "queue": job.queue, "node": node, "lease": job.lease}


def log(
    level: int, job: Any, text: str, action: str, exc_info: Any = None, is_raised: bool = False, **more: Any
) -> None:
    """One line about a job; it begins with the task's name and the job's id.

    Parameters:
        is_raised: it tells of an exception that Celery is told as well, and whoever listens there.
    """
    if logger.isEnabledFor(level):
        extra = {"action": action, **fields(job), **more}
        with sentry.silent(is_raised):
            logger.log(level, "%s[%s] %s", job.task, job.pk, text, exc_info=exc_info, extra=extra)
