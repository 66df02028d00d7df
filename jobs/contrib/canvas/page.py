"""Which job called which, and when each waited and ran, on the page of a job."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import mark_safe
from django.utils.translation import gettext

from jobs.contrib.canvas import graph
from jobs.contrib.inspection.times import duration
from jobs.contrib.inspection.view import SHOWN, View
from jobs.contrib.pages import html
from jobs.contrib.pages.base import template_of
from jobs.models import WAITING, Job, State

ZERO = datetime.timedelta()


def job_page(request: HttpRequest, view: View) -> dict[str, str]:
    first, called = _family(view.job, view.using)
    family = [*_lines(first, _oldest(first, called))]
    if len(family) < 2 and not graph.is_awaited(view.job):
        return {}
    parts = []
    if len(family) > 1:
        parts.append(template_of("family.html", __file__).render({"family": _waterfall(view.job, family)}, request))
    if (words := graph.drawn(view.job, first, called)) is not None:
        parts.append(template_of("graph.html", __file__).render(words, request))
    return {"related": mark_safe("".join(parts))} if parts else {}


def _family(job: Job, using: str) -> tuple[Job, dict[Any, list[Job]]]:
    """The first job of the line of calls (this one, if that is gone), and the first jobs that each job has called."""
    times = ("made_at", "run_at", "started_at", "finished_at")
    rows = Job.objects.using(using).only("id", "task", "state", "parent_id", "options", "lease", *times)
    first = rows.filter(pk=job.root_id).first() or job
    called: dict[Any, list[Job]] = {}
    seen, level = {first.pk}, [first.pk]
    while level and len(seen) < graph.MOST:
        found = list(rows.filter(parent_id__in=level).exclude(pk__in=seen).order_by("pk")[: graph.MOST])
        for each in sorted(found, key=lambda job: job.created_at):
            called.setdefault(each.parent_id, []).append(each)
        level = [each.pk for each in found]
        seen |= set(level)
    return first, called


def _oldest(first: Job, called: dict[Any, list[Job]]) -> dict[Any, list[Job]]:
    """At most SHOWN jobs of each generation, until there are SHOWN in all."""
    found: dict[Any, list[Job]] = {}
    level, number = [first], 1
    while level and number < SHOWN:
        level = sorted((each for job in level for each in called.get(job.pk, ())), key=lambda job: job.pk)[:SHOWN]
        for each in sorted(level, key=lambda job: job.created_at):
            found.setdefault(each.parent_id, []).append(each)
        number += len(level)
    return found


def _lines(job: Job, called: dict[Any, list[Job]], depth: int = 0) -> Iterator[tuple[int, Job]]:
    """A job and the jobs that it called, each below its caller, and how deep."""
    yield depth, job
    for each in called.get(job.pk, ()):
        yield from _lines(each, called, depth + 1)


def _waterfall(own: Job, family: list[tuple[int, Job]]) -> list[dict[str, Any]]:
    """How long each waited and ran, on one scale."""
    now = timezone.now()
    begin = min(job.created_at for _, job in family)
    end = max(min(now, job.finished_at or now) for _, job in family)
    whole = max(0.001, (end - begin).total_seconds())

    def bar(look: str, since: Any, until: Any) -> tuple[str, float, float]:
        x, to = (max(0.0, min(100.0, (at - begin).total_seconds() / whole * 100)) for at in (since, until))
        return look, round(x, 2), round(max(0.5, to - x), 2)

    found = []
    for depth, job in family:
        is_begun = job.started_at is not None and job.state not in WAITING
        since, until = (job.started_at if is_begun else None) or now, job.finished_at or now
        # Of a retried job the last run is drawn, and all time before it as waiting.
        bars, waited = [bar("ready", job.created_at, min(since, until))], max(since - job.created_at, ZERO)
        says = [gettext("waited %(time)s") % {"time": duration(waited.total_seconds())}]
        if is_begun:
            bars.append(bar("failed" if job.state == State.FAILED else "running", since, until))
            says.append(gettext("ran %(time)s") % {"time": duration(max(until - since, ZERO).total_seconds())})
        place = job.options.get("group_index") if isinstance(job.options, dict) else None
        name = format_html('<span title="{} {}">{}</span>', job.task, job.pk, job.task.rpartition(".")[2])
        found.append({
            "indent": "\u2003" * (depth - 1) + "\u2514 " if depth else "",
            "job": html.link(name, "job_change", job.pk) if job.pk != own.pk else format_html("<b>{}</b>", name),
            "part": "" if place is None else gettext("part %(number)s") % {"number": place + 1},
            "state": html.state(job.state),
            "bars": bars,
            "says": ", ".join(says),
        })  # fmt: skip
    return found
