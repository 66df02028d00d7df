"""The history of a job, for its page: its times, what people did, and what failed."""

import datetime
import uuid
from itertools import pairwise
from typing import Any

from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext_lazy as _

from jobs.contrib.inspection.frames import own_frames
from jobs.contrib.inspection.view import errors_of
from jobs.contrib.operations.actions import OPERATIONS
from jobs.contrib.pages import html
from jobs.lifecycle.transitions import NEVER
from jobs.models import Action, Job
from jobs.models.values import scrub

#: Characters of an error that a page shows: a row that somebody wrote by hand may have megabytes.
LONGEST = 100_000

TIMES = {
    "created_at": _("created"),
    "run_at": _("to run at"),
    "started_at": _("started"),
    "finished_at": _("finished"),
    "expires_at": _("expires"),
}


def of(job: Job) -> dict[str, Any]:
    """The context of the template ``job/history.html``."""
    kept = errors_of(job)
    earlier = kept[:-1] if kept and kept[-1] == job.error else kept
    known: list[Any] = [
        (at, label) for name, label in TIMES.items() if (at := getattr(job, name)) is not None and at < NEVER
    ]
    times = sorted(known, key=lambda pair: pair[0])
    return {
        # Each moment with the seconds since the previous one.
        "times": [
            (label, html.time(at), (at - before).total_seconds() if before else None)
            for (before, _), (at, label) in pairwise([(None, ""), *times])
        ],
        "actions": actions(job.pk, job._state.db),
        "error": _error(job.error),
        "earlier_errors": [_error(entry) for entry in reversed(earlier)],
    }


def actions(key: uuid.UUID, using: str | None) -> list[dict[str, Any]]:
    """What people did to a job or an event. Rows keep it in English; it is shown in the reader's language."""
    labels = {"replay": _("Replay"), **{name: each.label for name, each in OPERATIONS.items()}}
    return [
        {"at": html.time(row.at), "what": labels.get(row.what, row.what), "by": row.by, "why": row.why}
        for row in Action.objects.using(using).filter(job=key).order_by("pk")
    ]


def _error(entry: Any) -> dict[str, Any] | None:
    """An entry of ``Job.errors`` for the template. It may have any shape."""
    if not entry:
        return None
    if not isinstance(entry, dict):
        return {"type": "", "message": scrub(str(entry), LONGEST)}
    at, entry = when(entry), {name: scrub(str(text or ""), LONGEST) for name, text in entry.items()}
    return {**entry, "at": html.time(at) if at else "", "own": own_frames(entry.get("traceback", ""))}


def when(entry: Any) -> datetime.datetime | None:
    """When a kept error happened; None: the entry does not tell."""
    try:
        at = parse_datetime(str(entry["at"]))
        return timezone.make_aware(at) if at is not None and timezone.is_naive(at) else at
    except (KeyError, OverflowError, TypeError, ValueError):
        return None
