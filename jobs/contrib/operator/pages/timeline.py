"""How long a job waited and ran, drawn as a line: for its page."""

import datetime
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext

from jobs.contrib.inspection.times import duration
from jobs.contrib.inspection.view import errors_of
from jobs.contrib.pages.history import when
from jobs.lifecycle.transitions import due_at
from jobs.models import Job


def of(job: Job) -> dict[str, Any]:
    """Bars and marks, in percent of the time from the job's beginning to its end."""
    now = timezone.now()
    end = job.finished_at or max(now, due_at(job) or now)
    failures = {at: entry for entry in errors_of(job) if (at := when(entry)) is not None}
    begin = min([job.created_at, *failures])
    whole = max(0.001, (end - begin).total_seconds())

    def x(at: datetime.datetime) -> float:
        return round(max(0.0, min(100.0, (at - begin).total_seconds() / whole * 100)), 2)

    stretches = [each for each in _stretches(job, end) if each[3] > each[2]]
    bars = [
        (look, x(since), max(0.2, x(until) - x(since)), f"{label}: {duration((until - since).total_seconds())}")
        for look, label, since, until in stretches
    ]
    return {
        "bars": bars,
        "marks": [(x(at), f"{entry.get('type')}: {str(entry.get('message'))[:200]}") for at, entry in failures.items()],
        "legend": {look: label for look, label, _, _ in stretches},
        "label": ", ".join(bar[-1] for bar in bars) or gettext("it ended at once"),
    }


def _stretches(job: Job, end: datetime.datetime) -> list[tuple[str, str, datetime.datetime, datetime.datetime]]:
    """The job's life in stretches: all earlier attempts form one, with a mark for every failure."""
    begun = job.started_at
    if begun is not None and job.state in ("scheduled", "ready"):
        # It ran before and waits again.
        return [
            ("tried", gettext("earlier attempts"), job.created_at, min(job.run_at, begun)),
            ("scheduled", gettext("waits for its time"), begun, min(job.run_at, end)),
            ("ready", gettext("waits for a worker"), job.run_at, end),
        ]
    first = job.run_at if job.lease <= 1 else job.created_at
    return [
        ("scheduled", gettext("waited for its time"), job.created_at, min(first, end)),
        ("tried", gettext("earlier attempts"), first, job.run_at),
        ("ready", gettext("waited for a worker"), max(job.run_at, job.created_at), begun or end),
        ("running", gettext("ran"), begun or end, end),
    ]
