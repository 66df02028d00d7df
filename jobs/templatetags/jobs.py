"""``{% load jobs %}{% job_progress job %}``: a bar for a site's own pages."""

import uuid
from typing import Any

from django import template
from django.urls import NoReverseMatch, reverse

from jobs.arguments import as_uuid
from jobs.inspection import public
from jobs.models import Job
from jobs.operations.selection import find

register = template.Library()


@register.inclusion_tag("jobs/progress.html", takes_context=True)
def job_progress(context: Any, job: Job | uuid.UUID | str | None) -> dict[str, Any]:
    """How far a job is; nothing if there is no such job (any more).

    It goes on by itself where ``jobs.urls`` is included in the project's URLs, and is as it was otherwise.

    Parameters:
        job: the row, or its id.
    """
    if job is not None and not isinstance(job, Job):
        key = as_uuid(str(job))
        job = None if key is None else find(key)
    if job is None:
        return {"job": None}
    try:
        url = reverse("jobs:progress", args=[public.token_of(job)])
    except NoReverseMatch:
        url = ""
    return {"job": job, "url": url, "shown": public.of(job), "csp_nonce": context.get("csp_nonce")}
