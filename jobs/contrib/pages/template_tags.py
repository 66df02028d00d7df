"""``{% load jobs %}``: what the pages of the admin ask for."""

import time
from typing import Any

from django import template
from django.core.handlers.asgi import ASGIRequest

from jobs.contrib.inspection.times import duration
from jobs.contrib.pages.html import url_if_any
from jobs.models import Job

register = template.Library()
register.filter(duration)


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
    return url_if_any("live", since=f"{time.time():.0f}")
