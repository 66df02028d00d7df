"""The jobs: a list that stays fast over a long history, and a page that tells all about one of them."""

from __future__ import annotations

import datetime
import json
import re
import uuid
from functools import partial
from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.utils import flatten_fieldsets
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import path, reverse
from django.utils.dateparse import parse_datetime
from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs import why
from jobs.admin import frames, operate, timeline
from jobs.admin.changelist import UncountedChangeList
from jobs.admin.filters import Created, Narrow, StateFilter
from jobs.admin.readonly import NOTHING, ReadOnlyAdmin, moment
from jobs.admin.related import link, may, related
from jobs.arguments import scrub
from jobs.models import Action, Effect, Job, Node, State
from jobs.operations import OPERATIONS
from jobs.project import celery_app
from jobs.redaction import Shown
from jobs.selection import FIELDS, newest
from jobs.selection import SHOWN as DIGITS

#: Characters of JSON that the page shows of one field.
SHOWN = 100_000

#: Reasons that name an external call.
CALLS = ("effect_parked", "calling")

#: An id, or the first digits of one, or the last ones.
ID = re.compile(r"[0-9a-f]{8,32}")


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    list_display = ("short_id", "task", "badge", "queue", "due", "created")
    # No choice of all tasks or queues: it would read the whole table.
    list_filter = (("state", StateFilter), Created, Narrow)
    lookups = frozenset({"state__exact", *FIELDS})
    list_per_page = 50
    search_fields = ("id", "task")
    search_help_text = _("The ID of a job (or its last 8 digits), or the beginning of a task's name.")
    show_full_result_count = False
    actions = tuple(operate.action(each) for each in OPERATIONS.values())
    # By name, because a project may give the app another label.
    change_list_template = "admin/jobs/job/change_list.html"
    change_form_template = "admin/jobs/job/change_form.html"
    fieldsets = (
        (None, {"fields": ("id", "task", ("badge", "queue", "priority"))}),
        (_("Call"), {"fields": ("arguments", "keyword_arguments", "shown_result", "as_call")}),
        (
            _("Attempts"),
            {"fields": ("ran_on", ("lease", "retries", "snoozes"), ("crashes", "node_losses"))},
        ),
        (_("Keys"), {"fields": ("marker_key", "replayed", ("unique_key", "unique_until"))}),
        (_("Family"), {"fields": ("parent", "root")}),
        (_("Options of the call"), {"fields": ("shown_options",), "classes": ("collapse",)}),
    )
    readonly_fields = tuple(flatten_fieldsets(fieldsets))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[UncountedChangeList]:
        return JobChangeList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Job], search_term: str
    ) -> tuple[QuerySet[Job], bool]:
        """An id, the end of one as the list shows it, or the beginning of a task's name."""
        term = search_term.strip()
        digits = term.replace("-", "").lower()
        if ID.fullmatch(digits) and len(digits) == DIGITS:
            queryset = newest(queryset).filter(pk__endswith=digits)
        elif ID.fullmatch(digits):
            first, last = (uuid.UUID(digits.ljust(32, digit)) for digit in "0f")
            queryset = queryset.filter(pk=first) if first == last else queryset.filter(pk__range=(first, last))
        elif term:
            queryset = queryset.filter(task__startswith=term)
        return queryset, False

    # What people do

    def get_urls(self) -> list[Any]:
        name = f"{self.opts.app_label}_job"
        wrap = self.admin_site.admin_view
        return [
            path("operate/", wrap(operate.apart(partial(operate.many, self))), name=f"{name}_operate"),
            path("<uuid:key>/operate/", wrap(operate.apart(partial(operate.one, self))), name=f"{name}_operate_one"),
            *super().get_urls(),
        ]

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        actions = super().get_actions(request)
        return {name: each for name, each in actions.items() if operate.is_allowed(request, name)}

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Job | None = None,
    ) -> HttpResponse:
        if obj is not None:
            context |= {"times": times(obj), "error": error(obj.error), "earlier_errors": earlier_errors(obj)}
            context["timeline"] = timeline.draw(obj)
            view, reasons = why.explain(obj.pk)
            sees_calls = may(request, "view", Effect)
            context["reasons"] = [each for each in reasons if sees_calls or each.code not in CALLS]
            context["related"] = view and related(request, view)
            context["operations"] = operate.possible(request, obj)
            context["actions_done"] = actions_done(obj)
        return super().render_change_form(request, context, add, change, form_url, obj)

    @admin.display(description=_("ID"))
    def short_id(self, job: Job) -> str:
        return str(job.pk)[-DIGITS:]

    @admin.display(description=_("state"))
    def badge(self, job: Job) -> SafeString:
        return format_html('<span class="job-state job-{}">{}</span>', job.state, State(job.state).label)

    @admin.display(description=_("run at"))
    def due(self, job: Job) -> str:
        return moment(job.run_at)

    @admin.display(description=_("created at"))
    def created(self, job: Job) -> str:
        return moment(job.created_at)

    @admin.display(description=_("arguments"))
    def arguments(self, job: Job) -> SafeString:
        return pretty(Shown(job).args)

    @admin.display(description=_("keyword arguments"))
    def keyword_arguments(self, job: Job) -> SafeString:
        return pretty(Shown(job).kwargs)

    @admin.display(description=_("result"))
    def shown_result(self, job: Job) -> str:
        return pretty(Shown(job).result) if job.state == State.SUCCEEDED else NOTHING

    @admin.display(description=_("as a call"))
    def as_call(self, job: Job) -> SafeString:
        """To paste into a shell; with what people may not see left out."""
        seen = Shown(job)
        given = [*map(repr, seen.args), *(f"{name}={value!r}" for name, value in seen.kwargs.items())]
        app = celery_app()
        task = app and app.tasks.get(job.task)
        if task is None:
            module, _, name = job.task.rpartition(".")
        else:
            # Its name in Celery may be another one.
            module, name = task.__module__, task.__name__
        text = f"from {module} import {name}\n{name}.delay({', '.join(given)})" if module else f"{name}.delay(...)"
        return format_html('<pre class="job-json">{}</pre>', scrub(text, SHOWN))

    @admin.display(description=_("options"))
    def shown_options(self, job: Job) -> SafeString:
        return pretty(Shown(job).options)

    @admin.display(description=_("node"))
    def ran_on(self, job: Job) -> str:
        if job.node_id is None:
            return NOTHING
        node = Node.objects.using(job._state.db).filter(pk=job.node_id).first()
        if node is None:
            return gettext("%(id)s (no longer known)") % {"id": job.node_id}
        return format_html(
            '<a href="{}">{}</a>', reverse(f"admin:{Node._meta.app_label}_node_change", args=[node.pk]), node
        )

    @admin.display(description=_("parent"))
    def parent(self, job: Job) -> str:
        return link(job, job.parent_id)

    @admin.display(description=_("did the work before"))
    def replayed(self, job: Job) -> str:
        return link(job, job.replay_of)

    @admin.display(description=_("root"))
    def root(self, job: Job) -> str:
        return link(job, job.root_id)


class JobChangeList(UncountedChangeList):
    sorts: ClassVar[dict[str, tuple[Any, tuple[str, ...]]]] = {
        "": (_("newest"), ("-pk",)),
        "oldest": (_("oldest"), ("pk",)),
        "ended": (_("ended last"), ("-finished_at", "-pk")),
    }

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> QuerySet[Job]:
        """Without the columns that may be large."""
        rows = super().get_queryset(request, *args, **kwargs)
        return rows.only("id", "task", "state", "queue", "run_at", "made_at", "finished_at")


def pretty(value: Any) -> SafeString:
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return format_html('<pre class="job-json">{}</pre>', scrub(text, SHOWN))


def times(job: Job) -> list[dict[str, Any]]:
    """The moments of the job's life that have come, in their order, with the seconds between the last two."""
    moments = [
        (_("created"), job.created_at),
        (_("to run at"), job.run_at),
        (_("started"), job.started_at),
        (_("finished"), job.finished_at),
        (_("expires"), job.expires_at),
    ]
    known = sorted(((at, label) for label, at in moments if at is not None), key=lambda pair: pair[0])
    shown = []
    previous: datetime.datetime | None = None
    for at, label in known:
        after = None if previous is None else number_format((at - previous).total_seconds(), 3)
        shown.append({"label": label, "at": moment(at), "after": after})
        previous = at
    return shown


def actions_done(job: Job) -> list[dict[str, Any]]:
    """What people did to it; the row says it in English, and the button in the reader's language."""
    rows = Action.objects.using(job._state.db).filter(job=job.pk).order_by("pk")
    labels = {name: operation.label for name, operation in OPERATIONS.items()}
    return [{"at": row.at, "what": labels.get(row.what, row.what), "by": row.by, "why": row.why} for row in rows]


def error(entry: Any) -> dict[str, Any] | None:
    """An entry of ``Job.errors`` for the template, whatever somebody wrote into it."""
    if not entry:
        return None
    if not isinstance(entry, dict):
        return {"type": "", "message": entry}
    try:
        at = parse_datetime(str(entry.get("at") or ""))
    except ValueError:
        at = None
    return {**entry, "at": moment(at) if at else "", "own": frames.own(str(entry.get("traceback") or ""))}


def earlier_errors(job: Job) -> list[dict[str, Any] | None]:
    """The kept errors, newest first, without the current one."""
    kept = list(job.errors) if isinstance(job.errors, list) else [job.errors]
    if kept and kept[-1] == job.error:
        kept.pop()
    return [error(entry) for entry in reversed(kept)]
