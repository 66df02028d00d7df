"""The lines of the logger ``jobs``: what they are about stands in fields of the record, under stable names.

``action``
    is in every line: what happened, in one word.
``job``, ``task``, ``queue``, ``node``, ``lease``
    are in every line about a job: its id, its task's name, its queue, the worker that runs or ran it (None before its
    first claim), and the number of its claim. Where nothing but a message is known, so are only some.
``node``
    is in every line about a worker: its id.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobs.models import Job

logger = logging.getLogger("jobs")


def fields(job: Job) -> dict[str, Any]:
    """The fields of a line about this job."""
    return {
        "job": str(job.pk),
        "task": job.task,
        "queue": job.queue,
        "node": None if job.node_id is None else str(job.node_id),
        "lease": job.lease,
    }


def log(level: int, job: Job, text: str, action: str, exc_info: Any = None, **more: Any) -> None:
    """One line about a job; it begins with the task's name and the job's id."""
    extra = {"action": action, **fields(job), **more}
    logger.log(level, "%s[%s] %s", job.task, job.pk, text, exc_info=exc_info, extra=extra)
