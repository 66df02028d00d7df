"""The HTML of the pages: times, badges, values and links."""

import datetime
import json
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from typing import Any

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.text import Truncator
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs import extensions
from jobs.contrib.inspection.times import duration, local
from jobs.contrib.inspection.view import other
from jobs.contrib.operations.selection import DIGITS
from jobs.contrib.redaction.display import shown
from jobs.models import Job, State, tables
from jobs.models.values import scrub

NOTHING = "-"  #: Shown for a missing value.

#: The admin site of the page that is made: a project may have several, and links stay within theirs.
SITE: ContextVar[str | None] = ContextVar("jobs_admin_site", default=None)


def column(description: Any, show: Callable[[Any], Any]) -> Any:
    """A column of a list, or a field of a page: what ``show`` makes of a row."""
    return admin.display(lambda admin, row: show(row), description=description)


def time_column(description: Any, name: str) -> Any:
    return column(description, lambda row: time(getattr(row, name)))


#: The task of a job or of an entry of the schedule: its function's name, and the whole name on hover.
short_task = column(
    _("task"), lambda row: format_html('<span title="{}">{}</span>', row.task, row.task.rpartition(".")[2])
)


def time(value: datetime.datetime | None) -> str:
    """A moment in the reader's time zone, with seconds (Django's own format has none), and exact on hover."""
    if value is None:
        return NOTHING
    at = local(value)
    html = '<time datetime="{0}" title="{0}"><span>{1}</span> <span>{2}</span></time>'
    return format_html(html, at.isoformat(), f"{at:%Y-%m-%d}", f"{at:%H:%M:%S}")


def ago(value: datetime.datetime | None) -> str:
    """How long ago a moment was, or how long until it comes; the exact moment on hover."""
    if value is None:
        return NOTHING
    seconds = (timezone.now() - value).total_seconds()
    says = gettext("%(time)s ago") if seconds >= 0 else gettext("in %(time)s")
    html = '<time datetime="{0}" title="{0}">{1}</time>'
    return format_html(html, local(value).isoformat(), says % {"time": duration(abs(seconds))})


def badge(look: str, label: Any) -> str:
    return format_html('<span class="job-state {}">{}</span>', look, label)


def state(name: str) -> str:
    return badge(f"job-{name}", State(name).label)


def progress(percent: float | None, says: Any) -> str:
    html = '<progress class="job-bar" max="100" value="{}" aria-label="{}"></progress> {}'
    return format_html(html, percent or 0, gettext("Progress"), says)


def pretty(value: Any) -> str:
    return preformatted(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def preformatted(text: str) -> str:
    return format_html('<pre class="job-json">{}</pre>', scrub(text, 100_000))


def arguments(job: Job) -> str:
    """The arguments of the call in one line, redacted."""
    seen = shown(job)
    given = [*map(_brief, seen.args), *(f"{name}={_brief(value)}" for name, value in seen.kwargs.items())]
    return Truncator(scrub(", ".join(given), 1000)).chars(80)


def _brief(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def parts(page: str, request: HttpRequest, about: Any) -> dict[str, str]:
    """What extensions add to a page, by its place on the page."""
    found: dict[str, str] = {}
    for part in extensions.through("parts"):
        for place, html in part(page, request, about).items():
            found[place] = format_html("{}{}", found.get(place, ""), html)
    return found


@cache
def label_of(name: str) -> str:
    """The app label of a page (``event_change``) or a permission (``view_event``): one of its words is a model."""
    words = name.split("_")
    return next((kind._meta.app_label for kind in tables() if kind._meta.model_name in words), Job._meta.app_label)


def url_of(page: str, *args: Any, **query: Any) -> str:
    """The URL of a page such as ``job_change``; the index of the site if it has no such page."""
    return url_if_any(page, *args, **query) or reverse("admin:index", current_app=SITE.get())


def url_if_any(page: str, *args: Any, **query: Any) -> str:
    """The same; empty if there is no such page."""
    try:
        # A project may give the app another label.
        url = reverse(f"admin:{label_of(page)}_{page}", args=args, current_app=SITE.get())
    except NoReverseMatch:
        return ""
    return f"{url}?{urlencode(query)}" if query else url


def front() -> str:
    """The URL of the dashboard; if there is no dashboard, the URL of the app's own index."""
    return url_if_any("dashboard") or reverse("admin:app_list", args=[Job._meta.app_label], current_app=SITE.get())


def link(label: Any, page: str, *args: Any, **query: Any) -> str:
    url = url_if_any(page, *args, **query)
    return format_html('<a href="{}">{}</a>', url, label) if url else str(label)


def link_to(row: Model, key: uuid.UUID | None) -> str:
    """A link to the job that a row names, or to another row with this id, if it is (still) in this database."""
    if key is None:
        return NOTHING
    if key == row.pk:
        return gettext("this job")
    job = Job.objects.using(row._state.db).filter(pk=key).only("id", "task", "state").first()
    if job is not None:
        return format_html("{} ({})", link(f"{job.task} {key}", "job_change", key), State(job.state).label)
    if (found := other(key, "page")) is not None and found.row._state.db == row._state.db:
        return link(*found.page)
    return gettext("%(id)s (not a job here, or deleted)") % {"id": key}


def short_link(key: uuid.UUID | None) -> str:
    return NOTHING if key is None else link(str(key)[-DIGITS:], "job_change", key)
