"""The kept lines of a job, as people may see them."""

from __future__ import annotations

import datetime
from typing import Any

from jobs.contrib.kept_logs.hidden import read
from jobs.contrib.kept_logs.models import LogLines
from jobs.contrib.redaction.display import shown
from jobs.models import Job


def attempts(job: Job, reveals: bool = False) -> list[dict[str, Any]]:
    """Each attempt that has lines, the last one first.

    Parameters:
        reveals: the reader may see encrypted values. If not, the lines of an attempt with encrypted lines are None.
    """
    rows = LogLines.objects.using(job._state.db).filter(job=job.pk).order_by("-attempt", "-pk")
    seen = shown(job)
    return [_told(row, seen, reveals) for row in rows]


def _told(row: Any, seen: Any, reveals: bool) -> dict[str, Any]:
    if (found := read(row.lines, reveals)) is None:
        return {"attempt": row.attempt, "dropped": 0, "first": None, "last": None}
    parts = {name: [_line(each, seen) for each in found[name]] for name in ("first", "last")}
    return {"attempt": row.attempt, "dropped": found["dropped"], **parts}


def _line(line: list[Any], seen: Any) -> dict[str, Any]:
    at, level, name, text = line
    moment = datetime.datetime.fromtimestamp(at, datetime.UTC)
    return {"at": moment, "level": level, "logger": name, "message": seen.text("log", text)}
