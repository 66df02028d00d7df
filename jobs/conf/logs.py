"""The log lines of the logger ``jobs``: each record has fields with stable names that say what it is about.

``action`` is in every line: what happened, in one word. ``job``, ``task`` and ``node`` are in every line about a job:
its id, its task's name, and the worker that runs or ran it, or that has its message (None: no worker had it yet); where
the row is known, ``queue`` and ``lease`` too. A line of a worker about itself has its id as ``node``.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from jobs.conf import sentry

logger = logging.getLogger("jobs")

#: Control characters; what breaks a line; what turns the direction of text around.
CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def visible(text: str, keep: str = "") -> str:
    """The text with escapes, as Python writes them, in place of characters that a terminal obeys."""
    return CONTROLS.sub(lambda found: found[0] if found[0] in keep else ascii(found[0])[1:-1], text)


def fields(job: Any) -> dict[str, Any]:
    node = None if job.node_id is None else str(job.node_id)
    return {"job": str(job.pk), "task": job.task, "queue": job.queue, "node": node, "lease": job.lease}


def log(
    level: int, job: Any, text: str, action: str, exc_info: Any = None, is_raised: bool = False, **more: Any
) -> None:
    """One line about a job; it begins with the task's name and the job's id.

    Parameters:
        is_raised: Celery, and so its listeners such as Sentry, get the same exception.
    """
    if logger.isEnabledFor(level):
        extra = {"action": action, **fields(job), **more}
        with sentry.silent(is_raised):
            logger.log(level, "%s[%s] %s", job.task, job.pk, text, exc_info=exc_info, extra=extra)
