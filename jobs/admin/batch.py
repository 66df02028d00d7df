"""The batches: how far each is, and buttons for all of its jobs."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs.admin.base import NOTHING, ReadOnlyAdmin, badge, column, link, may, time_column, url_of
from jobs.arguments import as_uuid
from jobs.calling import batches
from jobs.inspection import public
from jobs.models import Batch, State
from jobs.operations.actions import OPERATIONS

#: What may be done to all jobs of a batch, of what may be done to one.
WHOLE = ("retry", "cancel", "kill")


def _callback(batch: Batch, name: str) -> str:
    """The task that is to be called, or the job by which it was."""
    if (called := batch.called.get(name)) is None:
        return (getattr(batch, name) or {}).get("task", NOTHING)
    return format_html("{}: {}", called["task"], link(batch, as_uuid(called["id"])))


@admin.register(Batch)
class BatchAdmin(ReadOnlyAdmin):
    list_display = ("name", "bar", "made", "ended")
    search_fields = ("name",)
    change_form_template = "jobs/admin/batch/change_form.html"
    fields = ("id", "name", "bar", "jobs", "made", "ended", "success", "failure")

    made = time_column(_("created at"), "made_at")
    ended = time_column(_("finished at"), "ended_at")
    success = column(_("on success"), lambda batch: _callback(batch, "on_success"))
    failure = column(_("on failure"), lambda batch: _callback(batch, "on_failure"))

    @admin.display(description=_("progress"))
    def bar(self, batch: Batch) -> str:
        shown = public.of(batch)
        html = '<progress class="job-bar" max="100" value="{}" aria-label="{}"></progress> {}'
        return format_html(html, shown["percent"], gettext("Progress"), shown["text"])

    @admin.display(description=_("jobs"))
    def jobs(self, batch: Batch) -> str:
        """By state, each a link to them."""
        url = f"{url_of('job_changelist')}?batch={batch.pk}"
        found = batches.counts(batch)
        parts = [
            (f"{url}&state__exact={state}", badge(f"job-{state}", State(state).label), found[state])
            for state in State.values
            if found.get(state)
        ]
        return format_html_join(" ", '<a href="{}">{} {}</a>', parts) or NOTHING

    def search(self, rows: Any, term: str) -> Any:
        return rows.filter(name__startswith=term)

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        context["operations"] = [OPERATIONS[name] for name in WHOLE if may(request, OPERATIONS[name].permission)]
        return super().render_change_form(request, context, *args, **kwargs)
