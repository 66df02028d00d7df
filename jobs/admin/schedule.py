"""The schedule: what runs again and again, how it went, and the buttons to pause, resume and run it."""

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs.admin.base import NOTHING, ReadOnlyAdmin, badge, link_in_list, may, short_task, time_column, whether
from jobs.inspection import census, schedules
from jobs.models import Schedule, State
from jobs.operations import schedules as operations

#: The colour of each status: that of a job's state.
LOOKS = {"paused": "cancelled", "undefined": "cancelled", "over": "cancelled", "fine": "succeeded"}


def look_at(rows: Any) -> list[Any]:
    return schedules.look_at(rows, any(node["takes_jobs"] for node in census.nodes()))


class ScheduleChangeList(ChangeList):
    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list: Any = look_at(self.result_list)


@admin.register(Schedule)
class ScheduleAdmin(ReadOnlyAdmin):
    list_display = ("name", "status", "next", "last", "last_job_link", "missed", "timing", "short_task")
    list_filter = (("paused_at", whether(_("status"), _("not paused"), _("paused"))),)
    lookups = frozenset({"paused_at__isempty"})
    list_per_page = 100
    search_fields = ("name", "task")
    search_help_text = _("The beginning of a name, or of a task's name.")
    ordering = ("name",)
    actions = ("pause", "resume", "run_now")
    change_form_template = "jobs/admin/schedule/change_form.html"
    fields = (
        "name", "task", "timing", "status", "next", "last", "last_job_link", "missed", "last_missed", "error",
        "paused", "paused_by", "reason", "seen", "beat",
    )  # fmt: skip

    short_task = short_task
    next = time_column(_("next run"), "next_tick")
    last = time_column(_("last run"), "last_run")
    last_missed = time_column(_("last missed tick"), "missed_at")
    paused = time_column(_("paused at"), "paused_at")
    seen = time_column(_("seen at"), "seen_at")
    beat = time_column(_("called by celery beat"), "beat_at")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Schedule]:
        return schedules.known(super().get_queryset(request))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return ScheduleChangeList

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Schedule | None:
        row = super().get_object(request, object_id, from_field)
        return None if row is None else look_at([row])[0]

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Of an entry that no worker has: any other would come back at once."""
        is_gone = obj is not None and look_at([obj])[0].status == "undefined"
        return is_gone and may(request, "delete_schedule")

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return may(request, "operate_schedule")

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """With those of the list's actions that mean something to it."""
        other = "pause" if context["original"].paused_at else "resume"
        context["verbs"] = [
            each for name, each in self.get_actions(request).items() if name in self.actions and name != other
        ]
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description=_("status"))
    def status(self, row: Any) -> str:
        return badge(f"job-{LOOKS.get(row.status, 'failed')}", schedules.STATUSES[row.status])

    @admin.display(description=_("last job"))
    def last_job_link(self, row: Any) -> str:
        if row.last_job is None:
            return NOTHING
        state = badge(f"job-{row.state}", State(row.state).label) if row.state else ""
        return format_html("{} {}", link_in_list(row.last_job) if row.state else row.last_job, state)

    def search(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        return rows.filter(name__startswith=term) | rows.filter(task__startswith=term)

    @admin.action(description=_("Pause"), permissions=["operate"])
    def pause(self, request: HttpRequest, rows: QuerySet[Schedule]) -> None:
        by = request.user.get_username()
        self._tell(request, rows, "pause", [row for row in rows if operations.pause(row.pk, by)], gettext("Paused: %s"))

    @admin.action(description=_("Resume"), permissions=["operate"])
    def resume(self, request: HttpRequest, rows: QuerySet[Schedule]) -> None:
        self._tell(request, rows, "resume", [row for row in rows if operations.resume(row.pk)], gettext("Resumed: %s"))

    @admin.action(description=_("Run now"), permissions=["operate"])
    def run_now(self, request: HttpRequest, rows: QuerySet[Schedule]) -> None:
        done = []
        for row in rows:
            try:
                operations.run(row.pk, request.user.get_username())
                done.append(row)
            except (LookupError, TypeError, ValueError) as exc:
                self.message_user(request, f"{row}: {exc}", messages.ERROR)
        self._tell(request, rows, "run", done, gettext("Made a job of each: %s"))

    def _tell(self, request: HttpRequest, rows: Any, verb: str, done: list[Schedule], says: str) -> None:
        for row in done:
            self.log_change(request, row, verb)
        if done:
            self.message_user(request, says % ", ".join(map(str, done)), messages.SUCCESS)
        elif verb != "run":
            self.message_user(request, gettext("Nothing was changed."), messages.WARNING)
