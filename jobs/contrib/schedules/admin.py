"""The schedule: what runs again and again, how it went, and the buttons to pause, resume and run entries."""

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import quote
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs.contrib.pages import html
from jobs.contrib.pages.base import CountedChangeList, ReadOnlyAdmin, buttons, may, whether
from jobs.contrib.pages.html import column, time_column
from jobs.contrib.schedules import operations
from jobs.contrib.schedules import rows as rows_of
from jobs.contrib.schedules.models import Schedule

#: How many of the next runs the dashboard shows.
NEXT = 8

#: The job state whose colour each status has. All other statuses look failed.
LOOKS = {"paused": "cancelled", "undefined": "cancelled", "over": "cancelled", "fine": "succeeded"}


def _last_job(row: Any) -> str:
    if row.last_job is None:
        return html.NOTHING
    if not row.state:
        return str(row.last_job)
    return format_html("{} {}", html.short_link(row.last_job), html.state(row.state))


@admin.register(Schedule)
class ScheduleAdmin(ReadOnlyAdmin):
    list_display = ("name", "status", "next_in", "last_ago", "last_job_link", "missed", "timing", "short_task")
    list_filter = (("paused_at", whether(_("status"), _("not paused"), _("paused"))),)
    lookups = frozenset({"paused_at__isempty"})
    list_per_page = 100
    changelist = CountedChangeList
    search_fields = ("name", "task")
    search_help_text = _("The beginning of a name, or of a task's name.")
    ordering = ("name",)
    actions = ("pause", "resume", "run_now")
    fields = (
        "name", "task", "timing", "status", "next", "last", "last_job_link", "missed", "last_missed", "error",
        "paused", "paused_by", "reason", "seen", "beat",
    )  # fmt: skip

    status = column(
        _("status"),
        lambda row: html.badge(f"job-{LOOKS.get(row.status, 'failed')}", rows_of.STATUSES[row.status]),
    )
    short_task = html.short_task
    last_job_link = column(_("last job"), _last_job)
    next_in = column(_("next run"), lambda row: html.ago(row.next_tick))
    last_ago = column(_("last run"), lambda row: html.ago(row.last_run))
    next = time_column(_("next run"), "next_tick")
    last = time_column(_("last run"), "last_run")
    last_missed = time_column(_("last missed tick"), "missed_at")
    paused = time_column(_("paused at"), "paused_at")
    seen = time_column(_("seen at"), "seen_at")
    beat = time_column(_("called by celery beat"), "beat_at")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Schedule]:
        return rows_of.known(super().get_queryset(request))

    def look_at(self, rows: Any) -> None:
        rows_of.look_at(rows, rows_of.has_workers())

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Only an entry that no worker defines may be deleted: any other entry would come back at once."""
        return obj is not None and obj.status == "undefined" and may(request, "delete_schedule")

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return may(request, "operate_schedule")

    def about(self, request: HttpRequest, row: Schedule) -> dict[str, Any]:
        if not self.has_operate_permission(request):
            return {}
        verbs = ("resume" if row.paused_at else "pause", "run_now")
        choices = [(verb, getattr(self, verb).short_description) for verb in verbs]
        fields = {"_selected_action": row.pk, "index": "0"}
        return {"buttons": buttons(html.url_of("schedule_changelist"), "action", choices, asks_why=False, **fields)}

    def search(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        return rows.filter(name__startswith=term) | rows.filter(task__startswith=term)

    @admin.action(description=_("Pause"), permissions=["operate"])
    def pause(self, request: HttpRequest, rows: QuerySet[Schedule]) -> None:
        by = request.user.get_username()
        self._tell(request, "pause", [row for row in rows if operations.pause(row.pk, by)], gettext("Paused: %s"))

    @admin.action(description=_("Resume"), permissions=["operate"])
    def resume(self, request: HttpRequest, rows: QuerySet[Schedule]) -> None:
        self._tell(request, "resume", [row for row in rows if operations.resume(row.pk)], gettext("Resumed: %s"))

    @admin.action(description=_("Run now"), permissions=["operate"])
    def run_now(self, request: HttpRequest, rows: QuerySet[Schedule]) -> None:
        done = []
        for row in rows:
            try:
                operations.run(row.pk, request.user.get_username())
                done.append(row)
            except (LookupError, TypeError, ValueError) as exc:
                messages.error(request, f"{row}: {exc}")
        self._tell(request, "run", done, gettext("Made a job of each: %s"))

    def _tell(self, request: HttpRequest, verb: str, done: list[Schedule], says: str) -> None:
        for row in done:
            self.log_change(request, row, verb)
        if done:
            messages.success(request, says % ", ".join(map(str, done)))
        elif verb != "run":
            messages.warning(request, gettext("Nothing was changed."))


def panel(request: HttpRequest, entries: list[dict[str, Any]]) -> str:
    """The next runs, for the dashboard."""
    entries = [each for each in entries if each["next_tick"]]
    if not entries or not may(request, "view_schedule"):
        return ""
    shown = [
        (each, html.link(each["name"], "schedule_change", quote(each["name"])), html.ago(each["next_tick"]))
        for each in entries[:NEXT]
    ]
    words = {"entries": shown, "later": max(0, len(entries) - NEXT), "opts": Schedule._meta}
    return render_to_string("jobs/admin/schedule/next.html", words, request)
