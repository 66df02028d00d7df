"""The limits: which are in force and where they come from, how far each is used, and a form to set or remove one."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.validators import ProhibitNullCharactersValidator
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs.conf import loaded_app
from jobs.contrib.inspection.counts import ready
from jobs.contrib.inspection.times import duration
from jobs.contrib.limits import limits
from jobs.contrib.limits.limits import name_of
from jobs.contrib.limits.models import Limit
from jobs.contrib.limits.rates import MOST, limit_of
from jobs.contrib.limits.usage import usage, waiting
from jobs.contrib.operations.selection import check_queue, one_task
from jobs.contrib.pages.base import ReadOnlyAdmin, may, page, why_of
from jobs.contrib.pages.html import parts, time_column, url_of

TEXT = [ProhibitNullCharactersValidator()]


class LimitForm(forms.Form):
    kind = forms.ChoiceField(label=_("of a"), choices=[("queue", _("queue")), ("task", _("task"))])
    name = forms.CharField(label=_("name"), max_length=255, validators=TEXT)
    concurrency = forms.IntegerField(label=_("at once"), min_value=1, max_value=MOST, required=False)
    rate = forms.CharField(
        label=_("rate"),
        max_length=32,
        required=False,
        help_text=_("10/s, 100/m or 5000/h; 0 takes away what the settings or the code say."),
    )
    why = forms.CharField(label=_("Why (for the history):"), max_length=1000, required=False, validators=TEXT)

    def clean_rate(self) -> str | None:
        rate: str | None = self.cleaned_data["rate"] or None
        try:
            limit_of(None, rate)
        except ValueError:
            says = gettext("A rate is a number and its time, such as 10/s, 100/m or 5000/h.")
            raise ValidationError(says) from None
        return rate

    def clean(self) -> dict[str, Any]:
        given = self.cleaned_data
        if not self.errors and given["concurrency"] is None and given["rate"] is None:
            raise ValidationError(gettext("Say how many at once, or a rate, or both."))
        if name := given.get("name"):
            is_queue = given.get("kind") == "queue"
            try:
                if is_queue:
                    check_queue(name)
                given["of"] = name_of(name) if is_queue else one_task(name)
            except ValueError as exc:
                self.add_error("name", str(exc))
        return given


@admin.register(Limit)
class LimitAdmin(ReadOnlyAdmin):
    fields = ("name", "concurrency", "rate", "set_at", "by", "reason")

    set_at = time_column(_("set at"), "at")

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        initial = {name: request.GET.get(name, "") for name in ("kind", "name")}
        of = name_of(initial["name"]) if initial["kind"] == "queue" else initial["name"]
        concurrency, rate = limits.read().get(of, (None, None))
        return self._page(request, LimitForm(initial={**initial, "concurrency": concurrency, "rate": rate}))

    def _page(self, request: HttpRequest, form: LimitForm) -> HttpResponse:
        # Tasks declare limits in their code.
        loaded_app()
        given = {row.name: row for row in self.get_queryset(request)}
        rows, of_task = usage(), waiting()
        for row in rows:
            is_queue = row["kind"] == "queue"
            row["of"] = name_of(row["name"]) if is_queue else row["name"]
            row["waiting"] = ready(row["name"]) if is_queue else of_task(row["name"])
            row["next"], row["hand"] = duration(row["next_in"]), given.get(row["of"])
        about = {"rows": rows, "form": form, "parts": parts("limits", request, rows)}
        return self.render(request, "limits.html", gettext("Limits"), **about, may_set=may(request, "set_limit"))

    @page("set/", "limit_set", "set_limit")
    def set(self, request: HttpRequest) -> HttpResponse:
        form = LimitForm(request.POST)
        if not form.is_valid():
            return self._page(request, form)
        given = form.cleaned_data
        of, concurrency, rate, why = given["of"], given["concurrency"], given["rate"], given["why"]
        limits.set_by_hand(of, concurrency, rate, request.user.get_username(), why)
        said = ", ".join(filter(None, [concurrency and f"concurrency={concurrency}", rate and f"rate={rate}", why]))
        self.log_change(request, Limit(name=of), f"set {said}")
        messages.success(request, gettext("Set: %s. Workers heed it within a second or so.") % of)
        return HttpResponseRedirect(url_of("limit_changelist"))

    @page("remove/", "limit_remove", "set_limit")
    def remove(self, request: HttpRequest) -> HttpResponse:
        """Remove a limit that was set by hand: those of the settings and the code hold again."""
        row = self.get_queryset(request).filter(pk=request.POST.get("name", "").replace("\0", "")).first()
        if row is None:
            messages.warning(request, gettext("Nothing was changed."))
        else:
            limits.set_by_hand(row.name, None, None)
            self.log_change(request, row, f"remove {why_of(request)}".strip())
            messages.success(request, gettext("Removed: %s") % row.name)
        return HttpResponseRedirect(url_of("limit_changelist"))
