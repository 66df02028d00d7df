"""The life of a job, for its page: its moments, how long it waited and ran, what people did, and what failed."""

import datetime
import re
import uuid
from itertools import pairwise
from pathlib import Path
from typing import Any

from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs.admin import html
from jobs.inspection.times import duration
from jobs.models import Action, Job
from jobs.operations.actions import OPERATIONS

#: A frame of a traceback, with the lines of source and markers below it.
_FRAME = re.compile(r'^  File "(?P<path>[^"]*)", line \d+.*\n(?:    .*\n?)*', re.MULTILINE)

#: Paths of what is installed, comes with Python, or is this app. The traceback may be of another machine.
_FOREIGN = re.compile(
    r"[/\\](site-packages|dist-packages|lib[/\\]python\d[\d.]*)[/\\]|^<frozen |^"
    + re.escape(str(Path(__file__).parents[1]))
    + r"[/\\]"
)


MOMENTS = {
    "created_at": _("created"),
    "run_at": _("to run at"),
    "started_at": _("started"),
    "finished_at": _("finished"),
    "expires_at": _("expires"),
}


def of(job: Job) -> dict[str, Any]:
    """The context of the template ``job/history.html``."""
    kept = job.errors if isinstance(job.errors, list) else [job.errors]
    earlier = kept[:-1] if kept and kept[-1] == job.error else kept
    known: list[Any] = [(at, label) for name, label in MOMENTS.items() if (at := getattr(job, name)) is not None]
    moments = sorted(known, key=lambda pair: pair[0])
    return {
        "timeline": _timeline(job, kept),
        # Each moment with the seconds since the one before.
        "times": [
            (label, html.time(at), (at - before).total_seconds() if before else None)
            for (before, _), (at, label) in pairwise([(None, ""), *moments])
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


def _timeline(job: Job, errors: list[Any]) -> dict[str, Any]:
    """Bars and marks, in percent of the time from the job's beginning to its end."""
    end = job.finished_at or max(timezone.now(), job.run_at)
    failures = {at: entry for entry in errors if (at := _when(entry)) is not None}
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
    """The job's life in stretches: all earlier attempts are one, with a mark for every failure."""
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


def _error(entry: Any) -> dict[str, Any] | None:
    """An entry of ``Job.errors`` for the template. It may have any shape."""
    if not entry:
        return None
    if not isinstance(entry, dict):
        return {"type": "", "message": entry}
    at = _when(entry)
    return {**entry, "at": html.time(at) if at else "", "own": own_frames(str(entry.get("traceback") or ""))}


def _when(entry: Any) -> datetime.datetime | None:
    try:
        at = parse_datetime(str(entry["at"]))
    except (KeyError, TypeError, ValueError):
        return None
    return timezone.make_aware(at) if at is not None and timezone.is_naive(at) else at


def own_frames(traceback: str) -> str:
    """The frames of the project's own code. Empty if there are none, or if there are no others."""
    frames = list(_FRAME.finditer(traceback))
    mine = [frame[0] for frame in frames if not _FOREIGN.search(frame["path"])]
    return "".join(mine) if len(mine) < len(frames) else ""
