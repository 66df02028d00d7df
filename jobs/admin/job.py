"""The jobs: a list that stays fast over a long history, and a page that tells all about one of them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs import why
from jobs.admin import history
from jobs.admin.base import NOTHING, badge, column, link, may, preformatted, pretty, time_column, url_of
from jobs.admin.effect import may_settle, status_badge
from jobs.admin.operate import OperatingAdmin
from jobs.conf import conf
from jobs.fields import created_since
from jobs.models import Job, Node, State
from jobs.project import celery_app
from jobs.redaction import Shown
from jobs.selection import FIELDS, Selection, Unreadable, moment, newest
from jobs.selection import SHOWN as DIGITS
from jobs.times import duration

#: Reasons that name an external call.
CALLS = ("effect_parked", "calling")

#: An id, or the first digits of one, or the last ones.
ID = re.compile(r"[0-9a-f]{8,32}")

#: What the list can be narrowed by in words, the same as on the command line: what it is called, and an example.
LABELS = {
    "task": (_("Task"), "shop.tasks.*"),
    "queue": (_("Queue"), "celery"),
    "node": (_("Worker (its ID or host)"), "web1"),
    "key": (_("Key (unique or marker)"), "welcome:42"),
    "parent": (_("Called by the job"), "6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11"),
    "error": (_("Error"), "SMTPConnectError"),
    "since": (_("Created since"), "2h"),
    "until": (_("Created before"), "2026-11-21 14:30"),
    "contains": (_("Arguments contain"), "ada@example.com"),
}


class StateFilter(admin.ChoicesFieldListFilter):
    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> Any:
        asked: Any = self.used_parameters.get(self.lookup_kwarg, [])
        return Selection(states=asked).narrow(queryset)


class Created(admin.SimpleListFilter):
    title = _("created")
    parameter_name = "created"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("1h", _("last hour")), ("1d", _("last day")), ("1w", _("last week"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        age = self.value()
        return queryset.filter(created_since(moment(age))) if age in dict(self.lookup_choices) else queryset


class Narrow(admin.ListFilter):
    """One form for all of them, where Django has a list of links for each."""

    title = _("what they have in common")
    template = "admin/jobs/job/filter.html"

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: type[Job], model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        # Who may not see an argument may not find out by asking for it either.
        self.names = [name for name in FIELDS if name != "contains" or conf().REDACT is None]
        self.asked: dict[str, str] = {name: params.pop(name)[-1] for name in self.names if name in params}

    def expected_parameters(self) -> list[str | None]:
        return [*self.names]

    def has_output(self) -> bool:
        return True

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        try:
            return Selection.of(self.asked).narrow(queryset)
        except Unreadable as exc:
            messages.error(request, f"{LABELS[exc.field][0]}: {exc.why}")
            return queryset.none()

    def choices(self, changelist: Any) -> Iterator[dict[str, Any]]:
        others = [(name, value) for name, value in changelist.params.items() if name not in self.names]
        yield {"others": others, "fields": [(name, *LABELS[name], self.asked.get(name, "")) for name in self.names]}


@admin.register(Job)
class JobAdmin(OperatingAdmin):
    list_display = ("short_id", "task", "badge", "queue", "due", "created")
    #: Not those that may be large.
    list_only = ("id", "task", "state", "queue", "run_at", "made_at", "finished_at")
    # No choice of all tasks or queues: it would read the whole table.
    list_filter = (("state", StateFilter), Created, Narrow)
    lookups = frozenset({"state__exact", *FIELDS})
    sorts = {
        "": (_("newest"), ("-pk",)),
        "oldest": (_("oldest"), ("pk",)),
        "ended": (_("ended last"), ("-finished_at", "-pk")),
    }
    search_fields = ("id", "task")
    search_help_text = _("The ID of a job (or its last 8 digits), or the beginning of a task's name.")
    change_form_template = "admin/jobs/job/change_form.html"
    fieldsets = (
        (None, {"fields": ("id", "task", ("badge", "queue", "priority"))}),
        (_("Call"), {"fields": ("arguments", "keyword_arguments", "shown_result", "as_call")}),
        (_("Attempts"), {"fields": ("ran_on", ("lease", "retries", "snoozes"), ("crashes", "node_losses"))}),
        (_("Keys"), {"fields": ("marker_key", "replayed", ("unique_key", "unique_until"))}),
        (_("Family"), {"fields": ("parent", "root")}),
        (_("Options of the call"), {"fields": ("shown_options",), "classes": ("collapse",)}),
    )

    short_id = column(_("ID"), lambda job: str(job.pk)[-DIGITS:])
    badge = column(_("state"), lambda job: badge(f"job-{job.state}", State(job.state).label))
    due = time_column(_("run at"), "run_at")
    created = time_column(_("created at"), "created_at")
    arguments = column(_("arguments"), lambda job: pretty(Shown(job).args))
    keyword_arguments = column(_("keyword arguments"), lambda job: pretty(Shown(job).kwargs))
    shown_result = column(_("result"), lambda job: pretty(Shown(job).result) if job.state == "succeeded" else NOTHING)
    shown_options = column(_("options"), lambda job: pretty(Shown(job).options))
    parent = column(_("parent"), lambda job: link(job, job.parent_id))
    replayed = column(_("did the work before"), lambda job: link(job, job.replay_of))
    root = column(_("root"), lambda job: link(job, job.root_id))

    @admin.display(description=_("as a call"))
    def as_call(self, job: Job) -> SafeString:
        """To paste into a shell; with what people may not see left out."""
        seen = Shown(job)
        given = [*map(repr, seen.args), *(f"{name}={value!r}" for name, value in seen.kwargs.items())]
        app = celery_app()
        task = app and app.tasks.get(job.task)
        # Its name in Celery may be another one.
        path = job.task if task is None else f"{task.__module__}.{task.__name__}"
        module, _, name = path.rpartition(".")
        call = f"from {module} import {name}\n{name}.delay({', '.join(given)})" if module else f"{name}.delay(...)"
        return preformatted(call)

    @admin.display(description=_("node"))
    def ran_on(self, job: Job) -> str:
        if job.node_id is None:
            return NOTHING
        node = Node.objects.using(job._state.db).filter(pk=job.node_id).first()
        if node is None:
            return gettext("%(id)s (no longer known)") % {"id": job.node_id}
        return format_html('<a href="{}">{}</a>', url_of("node_change", node.pk), node)

    def search(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        """An id, the end of one as the list shows it, or the beginning of a task's name."""
        digits = term.replace("-", "").lower()
        if not ID.fullmatch(digits):
            return rows.filter(task__startswith=term)
        if len(digits) == DIGITS:
            return newest(rows).filter(pk__endswith=digits)
        first, last = (uuid.UUID(digits.ljust(32, digit)) for digit in "0f")
        return rows.filter(pk=first) if first == last else rows.filter(pk__range=(first, last))

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        job = context["original"]
        view, reasons = why.explain(job.pk)
        sees_calls = may(request, "view_effect")
        context |= {
            "history": history.of(job),
            "reasons": [each for each in reasons if sees_calls or each.code not in CALLS],
            "operations": self.possible(request, job),
            "view": view,
        }
        if view is not None:
            _, held = view.lock or ("", None)
            calls = view.effects if sees_calls else []
            context |= {
                "markers": view.markers if may(request, "view_marker") else [],
                "calls": [(row, status_badge(row), may_settle(request, row)) for row in calls],
                "lock_left": duration(held.left) if held is not None and held.left is not None else "",
            }
        return super().render_change_form(request, context, *args, **kwargs)
