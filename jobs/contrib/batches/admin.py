"""The batches: how far each is, and buttons for all of its jobs."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs.contrib.batches.batch import counts
from jobs.contrib.batches.models import Batch
from jobs.contrib.batches.rows import shown
from jobs.contrib.operations.actions import OPERATIONS
from jobs.contrib.pages import html
from jobs.contrib.pages.base import ReadOnlyAdmin, buttons, may
from jobs.contrib.pages.html import column, time_column
from jobs.contrib.pages.job import JobAdmin
from jobs.models import Job, State
from jobs.models.values import as_uuid

#: The operations that the page offers for all jobs of a batch.
WHOLE = ("retry", "cancel", "kill")


def _callback(batch: Batch, name: str) -> str:
    """The task that will be called at the end, or the job that was made of it."""
    if (called := batch.called.get(name)) is None:
        return (getattr(batch, name) or {}).get("task", html.NOTHING)
    return format_html("{}: {}", called["task"], html.link_to(batch, as_uuid(called["id"])))


def _bar(batch: Batch) -> str:
    found = shown(batch)
    return html.progress(found["percent"], found["text"])


def _jobs(batch: Batch) -> str:
    """How many jobs are in each state, as links to them."""
    found = counts(batch)
    parts = [
        (html.url_of("job_changelist", batch=batch.pk, state__exact=state), html.state(state), found[state])
        for state in State.values
        if found.get(state)
    ]
    return format_html_join(" ", '<a href="{}">{} {}</a>', parts) or html.NOTHING


def _link(job: Job) -> str:
    batch = Batch.objects.using(job._state.db).filter(pk=job.batch_id).first() if job.batch_id else None
    return html.link(batch, "batch_change", batch.pk) if batch else html.NOTHING


JobAdmin.add_relative("linked_batch", "batch_id", column(_("batch"), _link))


@admin.register(Batch)
class BatchAdmin(ReadOnlyAdmin):
    list_display = ("name", "bar", "made", "ended")
    search_fields = ("name",)
    fields = ("id", "name", "bar", "jobs", "made", "ended", "success", "failure")

    bar = column(_("progress"), _bar)
    jobs = column(_("jobs"), _jobs)
    made = time_column(_("created at"), "made_at")
    ended = time_column(_("finished at"), "ended_at")
    success = column(_("on success"), lambda batch: _callback(batch, "on_success"))
    failure = column(_("on failure"), lambda batch: _callback(batch, "on_failure"))

    def search(self, rows: Any, term: str) -> Any:
        return rows.filter(name__startswith=term)

    def about(self, request: HttpRequest, row: Batch) -> dict[str, Any]:
        allowed = [OPERATIONS[name] for name in WHOLE if may(request, OPERATIONS[name].permission)]
        says = gettext("%(label)s: all jobs")
        choices = [(each.name, says % {"label": each.label}) for each in allowed]
        # The page belongs to the operator's room, if that is installed.
        url = html.url_if_any("job_operate", batch=row.pk)
        found = buttons(url, "operation", choices, scope="all") if choices and url else None
        return {"buttons": found, "is_followed": row.ended_at is None}
