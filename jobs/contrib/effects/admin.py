"""The external calls. Only a person can say whether some of them happened."""

import json
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs.contrib.effects import rows as rows_of
from jobs.contrib.effects.models import Effect
from jobs.contrib.effects.operations import clear_up
from jobs.contrib.inspection.view import View
from jobs.contrib.operations.given import parsed
from jobs.contrib.pages import html
from jobs.contrib.pages.base import ReadOnlyAdmin, by_key, may, page
from jobs.contrib.pages.html import column, link, time_column, url_if_any, url_of
from jobs.contrib.redaction.display import veil
from jobs.models.values import jsonable, parse_uuid

UNSENT, SENDING = ~Q(state=Effect.State.SENT), Q(state=Effect.State.SENDING)
PARKED, AMBIGUOUS = Q(state=Effect.State.PARKED), SENDING & Q(is_made=False)

#: What the list can be filtered by: a label, and the condition, which begins with that of the partial index.
STATUSES: dict[str, tuple[Any, Q]] = {
    "unsettled": (_("ambiguous or parked"), UNSENT & (PARKED | AMBIGUOUS)),
    "sending": (_("being made"), UNSENT & SENDING & Q(is_made=True)),
    "ambiguous": (_("ambiguous"), UNSENT & AMBIGUOUS),
    "sent": (_("sent"), Q(state=Effect.State.SENT)),
    "parked": (_("parked"), UNSENT & PARKED),
}


class StatusFilter(admin.SimpleListFilter):
    title = _("status")
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(name, label) for name, (label, condition) in STATUSES.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        status = self.value()
        return queryset.filter(STATUSES[status][1]) if status in STATUSES else queryset


class AnswerForm(ActionForm):
    # Not a JSONField: if a form is not valid, Django says that no action was selected.
    answer = forms.CharField(
        required=False, label=_("Answer (JSON):"), widget=forms.TextInput(attrs={"placeholder": '{"id": "ch_1"}'})
    )


def status_badge(row: Effect) -> str:
    status = rows_of.status(row)
    return html.badge(f"effect-{status}", STATUSES[status][0])


def may_settle(request: HttpRequest, row: Effect) -> bool:
    """Whether a person has to say if the call happened, and this user may say so."""
    return may(request, "change_effect") and rows_of.status(row) in ("ambiguous", "parked")


@admin.register(Effect)
class EffectAdmin(ReadOnlyAdmin):
    list_display = ("call", "badge", "calls", "job_link", "created", "sent")
    list_filter = (StatusFilter,)
    search_fields = ("name", "key", "job")
    search_help_text = _("The beginning of name:key, or the ID of a job.")
    change_form_template = "jobs/admin/effect/change_form.html"
    action_form = AnswerForm
    actions = ("mark_happened", "mark_not_happened")
    fields = ("call", "badge", "calls", "linked_job", "attempt", "created", "sent", "shown_answer")

    call = column(_("call"), str)
    attempt = column(_("attempt of the job"), lambda row: row.lease)
    badge = column(_("status"), status_badge)
    job_link = column(_("job"), lambda row: html.short_link(row.job))
    linked_job = column(_("job"), lambda row: html.link_to(row, row.job))
    created = time_column(_("begun"), "created_at")
    sent = time_column(_("sent"), "sent_at")
    shown_answer = column(_("answer"), lambda row: html.pretty(rows_of.answer_of(row, row.answer)))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Effect]:
        return rows_of.with_makers(super().get_queryset(request))

    def search(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        name, colon, key = term.partition(":")
        if (job := parse_uuid(term)) is not None:
            return rows.filter(job=job)
        return by_key(rows.filter(name=name), key) if colon else rows.filter(name__startswith=term)

    def about(self, request: HttpRequest, row: Effect) -> dict[str, Any]:
        return {"may_settle": may_settle(request, row)}

    # What a person says

    def has_settle_permission(self, request: HttpRequest) -> bool:
        """By the change permission, which allows nothing else here."""
        return may(request, "change_effect")

    @admin.action(permissions=["settle"], description=_("It happened: the job makes no call"))
    def mark_happened(self, request: HttpRequest, queryset: QuerySet[Effect]) -> None:
        self._say(request, queryset, True)

    @admin.action(permissions=["settle"], description=_("It did not happen: the job makes the call"))
    def mark_not_happened(self, request: HttpRequest, queryset: QuerySet[Effect]) -> None:
        self._say(request, queryset, False)

    @page("<int:key>/settle/", "effect_settle", "change_effect")
    def settle(self, request: HttpRequest, key: int) -> HttpResponse:
        """Say whether one call happened, and go back to the call's page or its job's."""
        verb = request.POST.get("verb")
        if verb not in ("happened", "not-happened"):
            raise PermissionDenied
        rows = self.get_queryset(request).filter(pk=key)
        row = rows.first()
        self._say(request, rows, verb == "happened")
        if row is not None and request.POST.get("back") == "job":
            return HttpResponseRedirect(url_of("job_change", row.job))
        return HttpResponseRedirect(url_of("effect_change", key) if rows.exists() else url_of("effect_changelist"))

    def _say(self, request: HttpRequest, queryset: QuerySet[Effect], happened: bool) -> None:
        answer = None
        # For the log: all that is stored is English.
        said = "Said that it did not happen"
        if happened:
            text = request.POST.get("answer", "").strip()
            try:
                answer = jsonable(parsed(text), "the answer") if text else None
            except ValueError as exc:
                says = gettext("The answer is not JSON, and nothing was changed: %(error)s")
                messages.error(request, says % {"error": exc})
                return
        done: list[str] = []
        refused: list[str] = []
        rows = list(queryset)
        veil(rows)
        for row in rows:
            if happened:
                seen = json.dumps(rows_of.answer_of(row, answer), default=str)
                said = f"Said that it happened; the answer: {seen}"
            with transaction.atomic():
                if is_done := clear_up(row.pk, queryset.db, happened, answer):
                    self.log_change(request, row, said)
            (done if is_done else refused).append(str(row))
        if done:
            text = gettext("Noted: %(calls)s. Retry the jobs that failed because of it.")
            messages.success(request, text % {"calls": ", ".join(done)})
        if refused:
            text = gettext("Neither ambiguous nor parked, and left alone: %(calls)s.")
            messages.warning(request, text % {"calls": ", ".join(refused)})


def job_page(request: HttpRequest, view: View) -> dict[str, str]:
    """The calls that a job made: those that wait for a person, with the form; and all."""
    if not may(request, "view_effect") or not (calls := rows_of.of_job(view)):
        return {}
    settled = [row for row in calls if may_settle(request, row) and url_if_any("effect_settle", row.pk)]
    linked = [(link(row, "effect_change", row.pk), status_badge(row)) for row in calls]
    words = {"calls": linked, "settled": settled, "opts": Effect._meta}
    return {
        place: render_to_string(f"jobs/admin/effect/{name}.html", words, request)
        for place, name in (("above", "above_job"), ("related", "related"))
    }
