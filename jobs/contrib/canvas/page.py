"""Who called whom, on the page of a job."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext

from jobs.admin import html
from jobs.admin.base import template_of
from jobs.inspection.view import SHOWN, View
from jobs.models import Job, State


def job_page(request: HttpRequest, view: View) -> dict[str, str]:
    tree = _tree(view.job, *_family(view.job, view.using))
    words = {"family": tree}
    return {"related": template_of("family.html", __file__).render(words, request)} if len(tree) > 1 else {}


def _family(job: Job, using: str) -> tuple[Job, dict[Any, list[Job]]]:
    """The first job of the line of calls (this one, if that is gone), and the first ones that each has called."""
    rows = Job.objects.using(using).only("id", "task", "state", "parent_id", "options", "made_at", "run_at")
    first = rows.filter(pk=job.root_id).first() or job
    called: dict[Any, list[Job]] = {}
    seen, level = {first.pk}, [first.pk]
    while level and len(seen) < SHOWN:
        found = list(rows.filter(parent_id__in=level).exclude(pk__in=seen).order_by("pk")[:SHOWN])
        for each in sorted(found, key=lambda job: job.created_at):
            called.setdefault(each.parent_id, []).append(each)
        level = [each.pk for each in found]
        seen |= set(level)
    return first, called


def _tree(own: Job, job: Job, called: dict[Any, list[Job]]) -> list[Any]:
    """A job and the jobs that it called, for Django's filter ``unordered_list``."""
    below = [part for each in called.get(job.pk, ()) for part in _tree(own, each, called)]
    place = job.options.get("group_index") if isinstance(job.options, dict) else None
    state = str(State(job.state).label)
    if place is not None:
        state += ", " + gettext("part %(number)s") % {"number": place + 1}
    label = f"{job.task} {job.pk}"
    is_own = job.pk == own.pk
    shown = format_html("<strong>{}</strong>", label) if is_own else html.link(label, "job_change", job.pk)
    line = format_html("{} ({})", shown, state)
    return [line, below] if below else [line]
