"""``{% load jobs %}{% job_progress job %}``: a bar for a site's own pages."""

import uuid
from typing import Any

from django import template
from django.db.models import Model
from django.urls import NoReverseMatch, reverse

from jobs.contrib.progress import public
from jobs.models.values import as_uuid

register = template.Library()


@register.inclusion_tag("jobs/progress.html", takes_context=True)
def job_progress(context: Any, job: Model | uuid.UUID | str | None) -> dict[str, Any]:
    """Show how far a job or a batch is; nothing if it is not there (any more).

    The bar updates itself if the project's URLs include ``jobs.urls``; otherwise it stays as it was rendered.

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
