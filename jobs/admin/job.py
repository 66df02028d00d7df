"""The jobs: a list that stays fast over a long history, a page that tells all about one of them, and the buttons."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.admin.options import IS_POPUP_VAR, IncorrectLookupParameters
from django.contrib.admin.views.main import PAGE_VAR, ChangeList
from django.core.exceptions import PermissionDenied
from django.core.signing import BadSignature, Signer
from django.db import connections, transaction
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.utils import translation
from django.utils.html import format_html
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobs.admin import history
from jobs.admin.base import (
    NOTHING,
    ReadOnlyAdmin,
    UncountedChangeList,
    badge,
    column,
    link,
    may,
    preformatted,
    pretty,
    time_column,
    url_of,
)
from jobs.admin.idempotency import may_settle, status_badge
from jobs.arguments import scrub
from jobs.calling import progress
from jobs.conf import celery_app, conf
from jobs.inspection import why
from jobs.inspection.times import duration
from jobs.models import Batch, Job, Node, State
from jobs.models.fields import created_since
from jobs.operations.actions import OPERATIONS, Delete, Operation, Outcome
from jobs.operations.redaction import Shown
from jobs.operations.selection import DIGITS, FIELDS, Selection, Unreadable, moment, newest

BUDGET = 2.0  #: Seconds of work in one request; the next one goes on where it ended.
STEP = 100  #: Rows of one query of it.
NAMED = 10  #: Refusals that are named.
COUNTED = 100_000  #: What is counted at the most before somebody is asked.
FIRST = str(uuid.UUID(int=0))  #: Before all ids.
CALLS = ("effect_parked", "calling")  #: Reasons that name an external call.
ID = re.compile(r"[0-9a-f]{8,32}")  #: An id, or the first digits of one, or the last ones.


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
    template = "jobs/admin/job/filter.html"

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
            messages.error(request, f"{FIELDS[exc.field].label}: {exc.why}")
            return queryset.none()

    def choices(self, changelist: Any) -> Iterator[dict[str, Any]]:
        others = [(name, value) for name, value in changelist.params.items() if name not in self.names]
        fields = [(name, FIELDS[name], self.asked.get(name, "")) for name in self.names]
        yield {"others": others, "fields": fields}


class JobChangeList(UncountedChangeList):
    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        running = [job for job in self.result_list if job.state == State.RUNNING]
        found = progress.of(running)
        for job in running:
            job.progress = found.get(job.pk)


def _bar(job: Any) -> str:
    """What the body said of its progress; empty if it said nothing, or nobody asked."""
    said = getattr(job, "progress", None)
    if said is None:
        return ""
    html = ' <progress class="job-bar" max="100" value="{}" aria-label="{}"></progress> {}'
    return format_html(html, said.percent or 0, gettext("Progress"), said)


def _apart(view: Any) -> Any:
    """Each job in a transaction of its own, also with ATOMIC_REQUESTS: rows of jobs must not stay locked for long."""
    for alias in connections:
        view = transaction.non_atomic_requests(using=alias)(view)
    return view


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    actions = ()
    list_display = ("short_id", "task", "badge", "queue", "due", "created")
    #: The columns that may be large are left out.
    list_only = ("id", "task", "state", "queue", "run_at", "made_at", "finished_at", "lease")
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
    change_form_template = "jobs/admin/job/change_form.html"
    fieldsets = (
        (None, {"fields": ("id", "task", ("badge", "queue", "priority"))}),
        (_("Call"), {"fields": ("arguments", "keyword_arguments", "shown_result", "as_call")}),
        (
            _("Attempts"),
            {"fields": ("ran_on", ("lease", "retries", "snoozes"), ("crashes", "node_losses"), "shown_cursor")},
        ),
        (_("Keys"), {"fields": ("marker_key", "replayed", ("unique_key", "unique_until"))}),
        (_("Family"), {"fields": ("parent", "root", "linked_batch")}),
        (_("Options of the call"), {"fields": ("shown_options",), "classes": ("collapse",)}),
    )

    short_id = column(_("ID"), lambda job: str(job.pk)[-DIGITS:])
    badge = column(
        _("state"), lambda job: format_html("{}{}", badge(f"job-{job.state}", State(job.state).label), _bar(job))
    )
    due = time_column(_("run at"), "run_at")
    created = time_column(_("created at"), "created_at")
    arguments = column(_("arguments"), lambda job: pretty(Shown(job).args))
    keyword_arguments = column(_("keyword arguments"), lambda job: pretty(Shown(job).kwargs))
    shown_result = column(_("result"), lambda job: pretty(Shown(job).result) if job.state == "succeeded" else NOTHING)
    shown_cursor = column(_("cursor"), lambda job: NOTHING if job.cursor is None else pretty(Shown(job).cursor))
    shown_options = column(_("options"), lambda job: pretty(Shown(job).options))
    parent = column(_("parent"), lambda job: link(job, job.parent_id))
    replayed = column(_("did the work before"), lambda job: link(job, job.replay_of))
    root = column(_("root"), lambda job: link(job, job.root_id))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return JobChangeList

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        job: Any = super().get_object(request, object_id, from_field)
        if job is not None:
            job.progress = progress.of([job]).get(job.pk)
        return job

    @admin.display(description=_("batch"))
    def linked_batch(self, job: Job) -> str:
        batch = job.batch_id and Batch.objects.using(job._state.db).filter(pk=job.batch_id).first()
        return format_html('<a href="{}">{}</a>', url_of("batch_change", batch.pk), batch) if batch else NOTHING

    @admin.display(description=_("as a call"))
    def as_call(self, job: Job) -> str:
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
        if view is None:
            # Race: it was deleted a moment ago.
            raise Http404
        sees_calls = may(request, "view_effect")
        calls = view.effects if sees_calls else []
        _, held = view.lock or ("", None)
        context |= {
            "history": history.of(job),
            "reasons": [each for each in reasons if sees_calls or each.code not in CALLS],
            "operations": [
                each for each in OPERATIONS.values() if job.state in each.states and may(request, each.permission)
            ],
            "view": view,
            "family": _tree(job, *view.family),
            "markers": view.markers if may(request, "view_marker") else [],
            "calls": [(row, status_badge(row), may_settle(request, row)) for row in calls],
            "lock_left": duration(held.left) if held is not None and held.left is not None else "",
        }
        return super().render_change_form(request, context, *args, **kwargs)

    # The buttons: one job, or many at once, with a confirmation before, and an honest count after

    def get_urls(self) -> list[Any]:
        one = self.path("<uuid:key>/operate/", "job_operate_one", self.operate, posts=True)
        return [self.path("operate/", "job_operate", self.operate, posts=True), one, *super().get_urls()]

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """The operations, beside actions that are not ours and have permissions of their own."""
        found: dict[str, Any] = super().get_actions(request)
        for name, each in OPERATIONS.items():
            if may(request, each.permission) and IS_POPUP_VAR not in request.GET:
                found[name] = (partial(JobAdmin.confirm, operation=each), name, each.label)
        return found

    def confirm(self, request: HttpRequest, chosen: QuerySet[Job], operation: Operation) -> HttpResponse:
        """Ask: these, or all that the list's filters match."""
        keys = [str(key) for key in chosen.values_list("pk", flat=True)[: self.list_per_page]]
        matching = self.matching(request, operation)
        return self.render(
            request,
            "job/confirm.html",
            gettext("%(label)s: are you sure?") % {"label": operation.label},
            operation=operation,
            number=len(keys),
            keys=json.dumps(keys),
            # Unsorted: a count that has an end need not read what comes after it.
            all=sum(rows.order_by()[: COUNTED + 1].count() for rows in matching.values()),
            at_most=COUNTED,
            states=[state.label for state in operation.states],
            meant=[state.label for state in matching],
            action=_next(request),
            back=request.get_full_path(),
        )

    @_apart
    def operate(self, request: HttpRequest, key: uuid.UUID | None = None) -> HttpResponse:
        """Do it to one job and go back to its page, or to many and go back to the list."""
        operation = OPERATIONS.get(request.POST.get("operation", ""))
        if operation is None or not may(request, operation.permission):
            raise PermissionDenied
        back = url_of("job_change", key) if key else f"{url_of('job_changelist')}?{request.GET.urlencode()}"
        try:
            why = scrub(request.POST.get("why", "").strip(), 1000)
            operation = operation.told(request.POST.get("value", ""), request.user.get_username(), why)
        except ValueError as exc:
            self.message_user(request, str(exc), messages.ERROR)
            return HttpResponseRedirect(back)
        if key is None:
            return self._many(request, operation, back)
        job = get_object_or_404(self.get_queryset(request), pk=key)
        outcome = self._attempt(request, operation, job)
        level = messages.SUCCESS if outcome.is_done else messages.WARNING
        self.message_user(request, f"{job}: {outcome.says}", level)
        is_gone = outcome.is_done and isinstance(operation, Delete)
        return HttpResponseRedirect(url_of("job_changelist") if is_gone else back)

    def _many(self, request: HttpRequest, operation: Operation, back: str) -> HttpResponse:
        """Work for two seconds. Then a page goes on by itself, or the list says what was done."""
        progress = _Progress.of(request)
        if progress.keys is None:
            groups = list(self.matching(request, operation).values())
        else:
            groups = [self.get_queryset(request).filter(pk__in=progress.keys)]
        deadline = time.monotonic() + BUDGET
        for job in progress.left(groups):
            progress.note(job, self._attempt(request, operation, job))
            if time.monotonic() > deadline:
                return self.render(
                    request,
                    "job/progress.html",
                    operation.label,
                    operation=operation,
                    progress=progress,
                    state=Signer(salt="jobs.admin").sign_object(vars(progress)),
                    action=_next(request),
                )
        said = progress.end(operation)
        self.message_user(request, said, messages.WARNING if progress.refused else messages.SUCCESS)
        return HttpResponseRedirect(back)

    def _attempt(self, request: HttpRequest, operation: Operation, job: Job) -> Outcome:
        def log(outcome: Outcome) -> None:
            # English, as all that is stored.
            with translation.override(None):
                said = f"{operation.label}: {outcome.says}" + (f" ({operation.why})" if operation.why else "")
            user: Any = request.user.pk
            flag = DELETION if isinstance(operation, Delete) else CHANGE
            LogEntry.objects.log_actions(user, [job], flag, change_message=said, single_object=True)

        return operation.attempt(job.pk, also=log)

    def matching(self, request: HttpRequest, operation: Operation) -> dict[State, QuerySet[Job]]:
        """All jobs that the list's filters and search match, by state, because each state has an index of its own.

        They are of the states that are meant, as on the command line; of others only if the list is filtered by one.
        """
        try:
            rows = self.get_changelist_instance(request).queryset
        except IncorrectLookupParameters:
            raise PermissionDenied from None
        asked = request.GET.get("state__exact")
        if asked is None:
            return {state: Selection(states=[state]).narrow(rows) for state in operation.meant}
        return {state: rows for state in operation.states if state == asked}


def _next(request: HttpRequest) -> str:
    """The URL of the next step: with the list's filters, and without its page, which may be gone by then."""
    query = request.GET.copy()
    query.pop(PAGE_VAR, None)
    return f"{url_of('job_operate')}?{query.urlencode()}"


@dataclass
class _Progress:
    """How far it is, carried from request to request by the page itself, and signed."""

    #: None: all that match.
    keys: list[str] | None
    #: Where it is: in which group of them, and the last job of it.
    group: int = 0
    last: str = FIRST
    done: int = 0
    refused: int = 0
    named: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, request: HttpRequest) -> _Progress:
        try:
            if state := request.POST.get("state"):
                return cls(**Signer(salt="jobs.admin").unsign_object(state))
            if request.POST.get("scope") == "all":
                return cls(None)
            return cls([str(uuid.UUID(str(key))) for key in json.loads(request.POST.get("keys", "[]"))])
        except (BadSignature, TypeError, ValueError):
            raise PermissionDenied from None

    def left(self, groups: list[QuerySet[Job]]) -> Iterator[Job]:
        """The jobs that are left, by state and id. A job that changes its state meanwhile is met in the next group."""
        while self.group < len(groups):
            page = list(groups[self.group].filter(pk__gt=self.last).order_by("pk")[:STEP])
            yield from page
            if len(page) < STEP:
                self.group, self.last = self.group + 1, FIRST

    def note(self, job: Job, outcome: Outcome) -> None:
        self.last = str(job.pk)
        if outcome.is_done:
            self.done += 1
            return
        self.refused += 1
        if len(self.named) < NAMED:
            self.named.append(f"{job.pk} {outcome.says}")

    def end(self, operation: Operation) -> str:
        """What to say at the end. Some of those that were chosen may be deleted by now."""
        gone = len(self.keys) - self.done - self.refused if self.keys is not None else 0
        if gone > 0:
            self.refused += gone
            self.named.append(ngettext("%(number)s is gone", "%(number)s are gone", gone) % {"number": gone})
        text = ngettext("%(number)s job %(participle)s", "%(number)s jobs %(participle)s", self.done)
        text %= {"number": self.done, "participle": operation.participle}
        if self.refused:
            text += gettext(", %(number)s refused: ") % {"number": self.refused} + "; ".join(self.named)
            text += " ..." if self.refused > len(self.named) else ""
        return text


def _tree(own: Job, job: Job, called: dict[Any, list[Job]]) -> list[Any]:
    """A job and those that it called, as Django's ``unordered_list`` takes them; empty without any other."""
    below = [part for each in called.get(job.pk, ()) for part in _tree(own, each, called)]
    place = job.options.get("group_index") if isinstance(job.options, dict) else None
    label = str(State(job.state).label)
    if place is not None:
        label += ", " + gettext("part %(number)s") % {"number": place + 1}
    html = "<strong>{1} {2}</strong> ({3})" if job.pk == own.pk else '<a href="{0}">{1} {2}</a> ({3})'
    line = format_html(html, url_of("job_change", job.pk), job.task, job.pk, label)
    return [line, below] if below else [line]
