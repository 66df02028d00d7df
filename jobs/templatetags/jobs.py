"""``{% load jobs %}{% job_progress job %}``: a bar for a site's own pages."""

import time
import uuid
from typing import Any

from django import template
from django.core.handlers.asgi import ASGIRequest
from django.db.models import Model
from django.urls import NoReverseMatch, reverse

from jobs.inspection import public
from jobs.inspection.times import duration
from jobs.models import Job
from jobs.models.values import as_uuid

register = template.Library()
register.filter(duration)


@register.inclusion_tag("jobs/progress.html", takes_context=True)
def job_progress(context: Any, job: Model | uuid.UUID | str | None) -> dict[str, Any]:
    """Show how far a job or a batch is; nothing if it is not there (any more).

    It goes on by itself where ``jobs.urls`` is included in the project's URLs, and is as it was otherwise.

    Parameters:
        job: the row, or its id.
    """
    found = job if isinstance(job, Model) else public.find(as_uuid(job))
    if found is None:
        return {"shown": None}
    try:
        url = reverse("jobs:progress", args=[public.token_of(found)])
    except NoReverseMatch:
        url = ""
    return {"url": url, "shown": public.of(found), "csp_nonce": context.get("csp_nonce")}


@register.filter
def short_name(task: str) -> str:
    """A task's name without the path to it."""
    return task.rpartition(".")[2]


@register.filter
def at(mapping: dict[str, Any], key: Any) -> Any:
    return mapping.get(str(key))


@register.simple_tag(takes_context=True)
def live_url(context: Any) -> str:
    """The URL of the stream of changes; empty where none is, or the user may not see jobs."""
    request, label = context.get("request"), Job._meta.app_label
    if not isinstance(request, ASGIRequest) or not request.user.has_perm(f"{label}.view_job"):
        return ""
    try:
        return f"{reverse(f'admin:{label}_live')}?since={time.time():.0f}"
    except NoReverseMatch:
        return ""
