"""The external calls: what was called and answered, and the two things that only a person can say of one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.contrib.auth import get_permission_codename
from django.db import transaction
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as translate
from django.utils.translation import gettext_lazy as _

from jobs import effects
from jobs.admin.changelist import UncountedChangeList
from jobs.admin.job import link, pretty
from jobs.admin.readonly import ReadOnlyAdmin, moment
from jobs.arguments import as_uuid, jsonable
from jobs.models import Effect, Job

LABELS = {
    "sending": _("being made"),
    "ambiguous": _("ambiguous"),
    "sent": _("sent"),
    "parked": _("parked"),
}


class StatusFilter(admin.SimpleListFilter):
    title = _("status")
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("unsettled", _("ambiguous or parked")), *LABELS.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        # exclude() first, because that is the condition of the partial index.
        ambiguous = Q(state=Effect.State.SENDING, is_made=False)
        match self.value():
            case "unsettled":
                return queryset.exclude(state=Effect.State.SENT).filter(Q(state=Effect.State.PARKED) | ambiguous)
            case "ambiguous":
                return queryset.exclude(state=Effect.State.SENT).filter(ambiguous)
            case "sending":
                return queryset.exclude(state=Effect.State.SENT).filter(state=Effect.State.SENDING, is_made=True)
            case "parked":
                return queryset.exclude(state=Effect.State.SENT).filter(state=Effect.State.PARKED)
            case "sent":
                return queryset.filter(state=Effect.State.SENT)
        return queryset


class AnswerForm(ActionForm):
    # As text: to a form that is not valid Django says that no action was selected.
    answer = forms.CharField(
        required=False, label=_("Answer (JSON):"), widget=forms.TextInput(attrs={"placeholder": '{"id": "ch_1"}'})
    )


@admin.register(Effect)
class EffectAdmin(ReadOnlyAdmin):
    list_display = ("call", "badge", "calls", "job_link", "created", "sent")
    list_filter = (StatusFilter,)
    list_per_page = 50
    search_fields = ("name", "key", "job")
    search_help_text = _("The beginning of name:key, or the ID of a job.")
    show_full_result_count = False
    change_list_template = "admin/jobs/job/change_list.html"
    change_form_template = "admin/jobs/effect/change_form.html"
    action_form = AnswerForm
    actions = ("mark_happened", "mark_not_happened")
    fields = ("call", "badge", "calls", "linked_job", "lease", "created", "sent", "shown_answer")
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[Effect]:
        return effects.with_makers(super().get_queryset(request))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[UncountedChangeList]:
        return UncountedChangeList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Effect], search_term: str
    ) -> tuple[QuerySet[Effect], bool]:
        """By an index each: nothing that starts with a wildcard."""
        term = search_term.strip()
        name, colon, key = term.partition(":")
        if len(term) >= 32 and (job := as_uuid(term)) is not None and job.hex == term.replace("-", "").lower():
            queryset = queryset.filter(job=job)
        elif colon:
            queryset = queryset.filter(name=name, key__startswith=key)
        elif term:
            queryset = queryset.filter(name__startswith=term)
        return queryset, False

    # What a person says

    def has_settle_permission(self, request: HttpRequest) -> bool:
        """The change permission; it allows nothing else here."""
        codename = get_permission_codename("change", self.opts)
        return bool(request.user.has_perm(f"{self.opts.app_label}.{codename}"))

    @admin.action(permissions=["settle"], description=_("It happened: the job makes no call"))
    def mark_happened(self, request: HttpRequest, queryset: QuerySet[Effect]) -> None:
        text = request.POST.get("answer", "").strip()
        try:
            answer = jsonable(json.loads(text), "the answer") if text else None
        except ValueError as exc:
            said = translate("The answer is not JSON, and nothing was changed: %(error)s")
            self.message_user(request, said % {"error": exc}, messages.ERROR)
            return
        said = translate("Said that it happened; the answer: %(answer)s") % {"answer": json.dumps(answer)}
        self._say(request, queryset, lambda row: effects.happened(row.pk, queryset.db, answer), said)

    @admin.action(permissions=["settle"], description=_("It did not happen: the job makes the call"))
    def mark_not_happened(self, request: HttpRequest, queryset: QuerySet[Effect]) -> None:
        said = translate("Said that it did not happen")
        self._say(request, queryset, lambda row: effects.did_not_happen(row.pk, queryset.db), said)

    def _say(self, request: HttpRequest, queryset: QuerySet[Effect], say: Callable[[Effect], bool], said: str) -> None:
        done: list[str] = []
        refused: list[str] = []
        for row in queryset:
            with transaction.atomic():
                if is_done := say(row):
                    self.log_change(request, row, said)
            (done if is_done else refused).append(str(row))
        if done:
            text = translate("Noted: %(calls)s. Retry the jobs that failed because of it.")
            self.message_user(request, text % {"calls": ", ".join(done)}, messages.SUCCESS)
        if refused:
            text = translate("Neither ambiguous nor parked, and left alone: %(calls)s.")
            self.message_user(request, text % {"calls": ", ".join(refused)}, messages.WARNING)

    # Columns

    @admin.display(description=_("call"))
    def call(self, row: Effect) -> str:
        return str(row)

    @admin.display(description=_("status"))
    def badge(self, row: Effect) -> SafeString:
        status = effects.status(row)
        return format_html('<span class="job-state effect-{}">{}</span>', status, LABELS[status])

    @admin.display(description=_("job"))
    def job_link(self, row: Effect) -> SafeString:
        url = reverse(f"admin:{Job._meta.app_label}_job_change", args=[row.job])
        return format_html('<a href="{}">{}</a>', url, str(row.job)[:8])

    @admin.display(description=_("job"))
    def linked_job(self, row: Effect) -> str:
        return link(row, row.job)

    @admin.display(description=_("begun"))
    def created(self, row: Effect) -> str:
        return moment(row.created_at)

    @admin.display(description=_("sent"))
    def sent(self, row: Effect) -> str:
        return moment(row.sent_at)

    @admin.display(description=_("answer"))
    def shown_answer(self, row: Effect) -> SafeString:
        return pretty(row.answer)
