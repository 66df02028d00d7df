"""The lines of the logger ``jobs``: what they are about stands in fields of the record, under stable names.

``action``
    is in every line: what happened, in one word.
``job``, ``task``, ``node``
    are in every line about a job: its id, its task's name, and the worker that runs or ran it (None: none did yet).
``queue``, ``lease``
    too, where the row is known: its queue, and the number of its claim.
``node``
    is in every line of a worker about itself: its id.
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
    if not logger.isEnabledFor(level):
        return
    extra = {"action": action, **fields(job), **more}
    logger.log(level, "%s[%s] %s", job.task, job.pk, text, exc_info=exc_info, extra=extra)
