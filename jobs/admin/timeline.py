"""The life of a job as a picture: how long it waited for its time, for a worker, and ran; and where it failed."""

from __future__ import annotations

import datetime
from typing import Any

from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from jobs.models import Job
from jobs.times import duration

#: Of the drawing, in its own units.
WIDTH, TOP, HEIGHT = 800.0, 6.0, 22.0


def draw(job: Job) -> SafeString:
    now = timezone.now()
    end = job.finished_at or max(now, job.run_at)
    moments = _attempts(job)
    begin = min([job.created_at, *moments])
    whole = max(0.001, (end - begin).total_seconds())

    def x(at: datetime.datetime) -> float:
        return max(0.0, min(WIDTH, (at - begin).total_seconds() / whole * WIDTH))

    bars = []
    for state, label, since, until in _stretches(job, end):
        if until > since:
            says = f"{label}: {duration((until - since).total_seconds())}"
            bars.append((state, _n(x(since)), _n(TOP), _n(max(1.5, x(until) - x(since))), _n(HEIGHT), says))
    ticks = [(_n(x(at)), _n(x(at)), _n(TOP - 4), _n(TOP + HEIGHT + 4), text) for at, text in moments.items()]
    label = ", ".join(bar[-1] for bar in bars) or gettext("it ended at once")
    return format_html(
        '<svg class="job-timeline" viewBox="0 0 {} {}" role="img" aria-label="{}">{}{}</svg>',
        int(WIDTH),
        int(TOP * 2 + HEIGHT),
        label,
        format_html_join(
            "",
            '<rect class="time-{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>',
            bars,
        ),
        format_html_join("", '<line x1="{}" x2="{}" y1="{}" y2="{}"><title>{}</title></line>', ticks),
    )


def _stretches(job: Job, end: datetime.datetime) -> list[tuple[str, str, datetime.datetime, datetime.datetime]]:
    """Of the last attempt; what came before it is one stretch, with a mark for every failure."""
    begun = job.started_at
    if begun is not None and job.state in ("scheduled", "ready"):
        # It ran before, and waits again.
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


def _attempts(job: Job) -> dict[datetime.datetime, str]:
    found = {}
    for entry in job.errors if isinstance(job.errors, list) else []:
        at = _moment(entry)
        if at is not None:
            found[at] = f"{entry.get('type')}: {str(entry.get('message'))[:200]}"
    return found


def _moment(entry: Any) -> datetime.datetime | None:
    try:
        at = parse_datetime(str(entry["at"]))
    except (KeyError, TypeError, ValueError):
        return None
    return at if at is None or timezone.is_aware(at) == timezone.is_aware(timezone.now()) else None


def _n(value: float) -> str:
    """Never in the reader's locale."""
    return f"{value:.1f}"
