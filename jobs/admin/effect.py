"""The external calls: what was called and answered, and the two things that only a person can say of one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs import effects
from jobs.admin.changelist import UncountedChangeList
from jobs.admin.job import pretty
from jobs.admin.readonly import ReadOnlyAdmin, moment
from jobs.admin.related import EFFECT_LABELS, effect_badge, job_url, link, link_in_list, may, settle_url
from jobs.arguments import jsonable, parse_uuid
from jobs.models import Effect


class StatusFilter(admin.SimpleListFilter):
    title = _("status")
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("unsettled", _("ambiguous or parked")), *EFFECT_LABELS.items()]

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
        if (job := parse_uuid(term)) is not None:
            queryset = queryset.filter(job=job)
        elif colon:
            queryset = queryset.filter(name=name, key__startswith=key)
        elif term:
            queryset = queryset.filter(name__startswith=term)
        return queryset, False

    # What a person says

    def has_settle_permission(self, request: HttpRequest) -> bool:
        """The change permission; it allows nothing else here."""
        return may(request, "change", Effect)

    def get_urls(self) -> list[Any]:
        name = f"{self.opts.app_label}_effect_settle"
        return [path("<int:key>/settle/", self.admin_site.admin_view(self.settle), name=name), *super().get_urls()]

    def settle(self, request: HttpRequest, key: int) -> HttpResponse:
        """POST: say of one call whether it happened, and go back to the page of it or of its job."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        say = {"happened": self.mark_happened, "not-happened": self.mark_not_happened}.get(request.POST.get("verb", ""))
        if say is None or not (self.has_settle_permission(request) and self.has_view_permission(request)):
            raise PermissionDenied
        rows = self.get_queryset(request).filter(pk=key)
        row = rows.first()
        say(request, rows)
        if row is not None and request.POST.get("back") == "job":
            return HttpResponseRedirect(job_url(row.job))
        if rows.exists():
            return HttpResponseRedirect(reverse(f"admin:{self.opts.app_label}_effect_change", args=[key]))
        return HttpResponseRedirect(reverse(f"admin:{self.opts.app_label}_effect_changelist"))

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        if self.has_settle_permission(request):
            context["settle_url"] = settle_url(context["original"])
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.action(permissions=["settle"], description=_("It happened: the job makes no call"))
    def mark_happened(self, request: HttpRequest, queryset: QuerySet[Effect]) -> None:
        text = request.POST.get("answer", "").strip()
        try:
            answer = jsonable(json.loads(text), "the answer") if text else None
        except ValueError as exc:
            said = gettext("The answer is not JSON, and nothing was changed: %(error)s")
            self.message_user(request, said % {"error": exc}, messages.ERROR)
            return
        said = f"Said that it happened; the answer: {json.dumps(answer)}"
        self._say(request, queryset, lambda row: effects.happened(row.pk, queryset.db, answer), said)

    @admin.action(permissions=["settle"], description=_("It did not happen: the job makes the call"))
    def mark_not_happened(self, request: HttpRequest, queryset: QuerySet[Effect]) -> None:
        said = "Said that it did not happen"
        self._say(request, queryset, lambda row: effects.did_not_happen(row.pk, queryset.db), said)

    def _say(self, request: HttpRequest, queryset: QuerySet[Effect], say: Callable[[Effect], bool], said: str) -> None:
        """``said``: for the log, which is English, as all that is stored."""
        done: list[str] = []
        refused: list[str] = []
        for row in queryset:
            with transaction.atomic():
                if is_done := say(row):
                    self.log_change(request, row, said)
            (done if is_done else refused).append(str(row))
        if done:
            text = gettext("Noted: %(calls)s. Retry the jobs that failed because of it.")
            self.message_user(request, text % {"calls": ", ".join(done)}, messages.SUCCESS)
        if refused:
            text = gettext("Neither ambiguous nor parked, and left alone: %(calls)s.")
            self.message_user(request, text % {"calls": ", ".join(refused)}, messages.WARNING)

    # Columns

    @admin.display(description=_("call"))
    def call(self, row: Effect) -> str:
        return str(row)

    @admin.display(description=_("status"))
    def badge(self, row: Effect) -> SafeString:
        return effect_badge(row)

    @admin.display(description=_("job"))
    def job_link(self, row: Effect) -> SafeString:
        return link_in_list(row.job)

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
