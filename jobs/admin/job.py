"""The jobs: a list that stays fast over a long history, a page that tells all about one of them, and the buttons."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.admin.options import IS_POPUP_VAR, IncorrectLookupParameters
from django.contrib.admin.views.main import ORDER_VAR, PAGE_VAR
from django.core.exceptions import PermissionDenied
from django.core.signing import BadSignature, Signer
from django.db.models import Q, QuerySet
from django.db.models.fields.json import KeyTextTransform
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.utils import timezone, translation
from django.utils.functional import cached_property
from django.utils.html import escape, format_html
from django.utils.safestring import mark_safe
from django.utils.text import Truncator
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobs.admin import history, html
from jobs.admin.base import ReadOnlyAdmin, UncountedChangeList, apart, may, numbered, page, why_of
from jobs.admin.event import event_link
from jobs.admin.html import NOTHING, column, url_of
from jobs.admin.idempotency import may_settle, status_badge
from jobs.arguments import parse_uuid, scrub
from jobs.calling import progress
from jobs.calling.options import says_how_to_retry
from jobs.conf import celery_app, conf
from jobs.inspection import events, why
from jobs.inspection.census import LIVE, Live, at_least
from jobs.inspection.times import duration
from jobs.models import UNSUCCESSFUL, WAITING, Batch, Job, State
from jobs.models.fields import created_since
from jobs.operations import selection
from jobs.operations.actions import OPERATIONS, Delete, Operation, Outcome
from jobs.operations.redaction import Shown
from jobs.operations.selection import DIGITS, FIELDS, Selection, newest

BUDGET = 2.0  #: Seconds of work in one request; the next one goes on where it ended.
STEP = 100  #: Rows of one query of it.
NAMED = 10  #: Refusals that are named.
COUNTED = 100_000  #: What is counted at the most before somebody is asked.
SEEN = 1000  #: Of the failed and cancelled jobs the newest are counted for the filter.
FIRST = str(uuid.UUID(int=0))  #: Before all ids.
CALLS = ("effect_parked", "calling")  #: Reasons that name an external call.
ID = re.compile(r"[0-9a-f]{8,32}")  #: An id, or the first digits of one, or the last ones.


class StateFilter(admin.ChoicesFieldListFilter):
    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> Any:
        asked: Any = self.used_parameters.get(self.lookup_kwarg, [])
        return Selection(states=asked).narrow(queryset)

    def choices(self, changelist: Any) -> Iterator[Any]:
        """With how many there are of each that lives, or that somebody may have to look at."""
        live = changelist.live
        numbers: dict[str, str] = {state: at_least(live.total(state), live.is_capped) for state in LIVE}
        ended = Job.objects.filter(state__in=UNSUCCESSFUL).order_by("-pk").values_list("state", flat=True)
        seen = list(ended[:SEEN])
        numbers[State.FAILED] = at_least(seen.count(State.FAILED), len(seen) == SEEN)
        return numbered(super().choices(changelist), State.values, numbers)


class Created(admin.SimpleListFilter):
    title = _("created")
    parameter_name = "created"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("1h", _("last hour")), ("1d", _("last day")), ("1w", _("last week"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        age = self.value()
        return queryset.filter(created_since(selection.moment(age))) if age in dict(self.lookup_choices) else queryset


class Narrow(admin.ListFilter):
    """One form for all of them, where Django has a list of links for each."""

    title = _("more filters")
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
        except selection.Unreadable as exc:
            messages.error(request, f"{FIELDS[exc.field].label}: {exc.why}")
            return queryset.none()

    def choices(self, changelist: Any) -> Iterator[dict[str, Any]]:
        others = [(name, value) for name, value in changelist.params.items() if name not in self.names]
        fields = [(name, FIELDS[name], self.asked.get(name, "")) for name in self.names]
        yield {"others": others, "fields": fields}


class Queues(admin.ListFilter):
    """The queues in which something waits or runs, with how many; :class:`Narrow` narrows."""

    title = _("queue")

    def expected_parameters(self) -> list[str | None]:
        return ["queue"]

    def has_output(self) -> bool:
        return True

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        return queryset

    def choices(self, changelist: Any) -> Iterator[dict[str, Any]]:
        asked, link = changelist.params.get("queue"), changelist.get_query_string
        yield {"selected": not asked, "query_string": link(remove=["queue"]), "display": _("All")}
        for name, each in sorted(changelist.live.queues.items()):
            number = at_least(sum(each[state] for state in LIVE), each["capped"])
            here = link({"queue": name}, [PAGE_VAR])
            yield {"selected": asked == name, "query_string": here, "display": f"{name} ({number})"}


class JobChangeList(UncountedChangeList):
    @cached_property
    def live(self) -> Live:
        return Live()

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        order = super().get_ordering(request, queryset)
        if request.GET.get("state__exact") == State.SCHEDULED and ORDER_VAR not in request.GET:
            # Those that are due first: their index has this order.
            order = self.order = ["run_at", "pk"]
        return order

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        if self.query:
            says = _("Searched: IDs, tasks; and words in errors and arguments of the newest %(number)s jobs.")
            self.search_help_text = says % {"number": f"{selection.SEARCHED:,}"}


def _badge(job: Any) -> str:
    """Its state, and what its body said of its progress, if it said anything."""
    said = getattr(job, "progress", None)
    bar = "" if said is None else html.progress(said.percent, said)
    return format_html("{} {}", html.state(job.state), bar) if bar else html.state(job.state)


def _took(job: Job) -> str:
    if job.started_at is None or job.state in WAITING:
        return NOTHING
    return duration(((job.finished_at or timezone.now()) - job.started_at).total_seconds())


def _fault(job: Any) -> str:
    """The last error, in one line."""
    if job.state == State.SUCCEEDED or not (job.error_type or job.error_message):
        return ""
    says = ": ".join(filter(None, (job.error_type, (job.error_message or "").partition("\n")[0])))
    return Truncator(scrub(says, 500)).chars(90)


def _as_call(job: Job) -> str:
    """To paste into a shell; with what people may not see left out."""
    seen = Shown(job)
    given = [*map(repr, seen.args), *(f"{name}={value!r}" for name, value in seen.kwargs.items())]
    app = celery_app()
    task = app and app.tasks.get(job.task)
    # Its name in Celery may be another one.
    path = job.task if task is None else f"{task.__module__}.{task.__name__}"
    module, _, name = path.rpartition(".")
    call = f"from {module} import {name}\n{name}.delay({', '.join(given)})" if module else f"{name}.delay(...)"
    return html.preformatted(call)


def _batch(job: Job) -> str:
    batch = Batch.objects.using(job._state.db).filter(pk=job.batch_id).first() if job.batch_id else None
    return html.link(batch, "batch_change", batch.pk) if batch else NOTHING


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    actions = ()
    list_display = ("short_id", "short_task", "given", "badge", "when", "fault", "took", "attempt", "queue")
    #: The columns that may be large are left out.
    list_only = (
        "id", "task", "args", "kwargs", "state", "queue", "run_at", "made_at", "started_at", "finished_at", "lease",
        "retries",
    )  # fmt: skip
    # No choice of all tasks: it would read the whole table.
    list_filter = (("state", StateFilter), Queues, Created, Narrow)
    lookups = frozenset({"state__exact", *FIELDS})
    sorts = {
        "": (_("newest"), ("-pk",)),
        "oldest": (_("oldest"), ("pk",)),
        "ended": (_("ended last"), ("-finished_at", "-pk")),
    }
    search_fields = ("id", "task")
    search_help_text = _("An ID (or its last 8 digits), a task or its function, or words of an error or an argument.")
    change_form_template = "jobs/admin/job/change_form.html"
    #: Without what the head of the page says.
    fieldsets = (
        (_("Call"), {"fields": ("arguments", "keyword_arguments", "shown_result", "as_call", "priority")}),
        (_("Attempts"), {"fields": (("lease", "retries", "snoozes"), ("crashes", "lost"), "shown_cursor")}),
        (_("Keys"), {"fields": ("marker_key", "replayed", ("unique_key", "unique_until"))}),
        (_("Family"), {"fields": ("parent", "root_job", "linked_batch")}),
        (_("Options of the call"), {"fields": ("shown_options",), "classes": ("collapse",)}),
    )

    sources = {
        "arguments": "args", "keyword_arguments": "kwargs", "shown_result": "result", "shown_cursor": "cursor",
        "shown_options": "options", "lost": "node_losses", "replayed": "replay_of", "parent": "parent_id",
        "root_job": "root", "linked_batch": "batch_id",
    }  # fmt: skip
    changelist = JobChangeList

    short_id = column(_("ID"), lambda job: str(job.pk)[-DIGITS:])
    badge = column(_("state"), _badge)
    short_task = html.short_task
    given = column(_("arguments"), lambda job: format_html("<code>{}</code>", html.arguments(job)))
    attempt = column(_("attempts"), lambda job: job.lease or NOTHING)
    took = column(_("duration"), _took)
    when = column(_("when"), lambda job: html.ago(job.run_at if job.state == State.SCHEDULED else job.created_at))
    fault = column(_("error"), _fault)
    arguments = column(_("arguments"), lambda job: html.pretty(Shown(job).args))
    keyword_arguments = column(_("keyword arguments"), lambda job: html.pretty(Shown(job).kwargs))
    shown_result = column(
        _("result"), lambda job: html.pretty(Shown(job).result) if job.state == State.SUCCEEDED else NOTHING
    )
    as_call = column(_("as a call"), _as_call)
    shown_cursor = column(_("cursor"), lambda job: html.pretty(Shown(job).cursor))
    lost = column(_("lost with a worker"), lambda job: job.node_losses)
    shown_options = column(_("options"), lambda job: html.pretty(Shown(job).options))
    parent = column(_("parent"), lambda job: html.link_to(job, job.parent_id))
    replayed = column(_("did the work before"), lambda job: html.link_to(job, job.replay_of))
    root_job = column(_("root"), lambda job: html.link_to(job, job.root_id))
    linked_batch = column(_("batch"), _batch)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        # Without its traceback, which may be long.
        kind, message = (KeyTextTransform(name, "error") for name in ("type", "message"))
        return super().get_queryset(request).annotate(error_type=kind, error_message=message)

    def look_at(self, rows: Iterable[Any]) -> None:
        """How far those are that run."""
        running = [job for job in rows if job.state == State.RUNNING]
        found = progress.of(running)
        for job in running:
            job.progress = found.get(job.pk)

    def search(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        """An id, the end of one as the list shows it, a task, or words that stand in the newest jobs."""
        digits = term.replace("-", "").lower()
        if len(digits) == DIGITS and ID.fullmatch(digits):
            return newest(rows).filter(pk__endswith=digits)
        if ID.fullmatch(digits):
            first, last = [uuid.UUID(digits.ljust(32, digit)) for digit in "0f"]
            return rows.filter(pk=first) if first == last else rows.filter(pk__range=(first, last))
        if tasks := selection.tasks_like(term):
            return rows.filter(task__in=tasks)
        words = Q(task__icontains=term) | Q(error_type__icontains=term) | Q(error_message__icontains=term)
        # Who may not see an argument may not find it out by a search either.
        return newest(rows).filter(words | selection.said(term) if conf().REDACT is None else words)

    def about(self, request: HttpRequest, row: Job) -> dict[str, Any]:
        view, reasons = why.explain(row.pk)
        if view is None:
            # Race: it was deleted a moment ago.
            raise Http404
        sees_calls = may(request, "view_effect")
        told = events.told_by(view.using, [row.pk]) if may(request, "view_event") else []
        _, held = view.lock or ("", None)
        return {
            "is_followed": row.finished_at is None,
            "history": history.of(row),
            "state_badge": _badge(row),
            "facts": self._facts(view),
            "resuming": {"verb": "resume", "queue": row.queue},
            "reasons": [(each, _in_words(each.cure)) for each in reasons if sees_calls or each.code not in CALLS],
            "pause": view.pause if row.state in WAITING and may(request, "pause_queue") else None,
            "operations": [
                each for each in OPERATIONS.values() if row.state in each.states and may(request, each.permission)
            ],
            "view": view,
            "family": _tree(row, *view.family),
            "markers": view.markers if may(request, "view_marker") else [],
            "told": [event_link(each) for each in told],
            "calls": [
                (each, status_badge(each), may_settle(request, each)) for each in (view.effects if sees_calls else [])
            ],
            "lock_left": duration(held.left) if held is not None and held.left is not None else "",
        }

    def _facts(self, view: why.View) -> Iterator[str]:
        """What the head of the page says, beside the state."""
        job = view.job
        most = view.task.max_retries if view.task is not None and says_how_to_retry(view.task) else None
        if job.lease:
            says = gettext("attempt %(number)s") if most is None else gettext("attempt %(number)s of %(all)s")
            yield says % {"number": job.retries + (job.state not in WAITING or not job.retries), "all": (most or 0) + 1}
        if job.state == State.RUNNING:
            yield gettext("runs for %(time)s") % {"time": view.ago(job.started_at)}
        elif job.started_at is not None and job.finished_at is not None:
            ran = max(0.0, (job.finished_at - job.started_at).total_seconds())
            yield gettext("ran %(time)s") % {"time": duration(ran)}
        elif job.state == State.SCHEDULED and not view.is_due:
            yield gettext("due in %(time)s") % {"time": duration(-view.since(job.run_at))}
        if job.node_id is not None:
            node = view.own_worker
            known = gettext("%(id)s (no longer known)") % {"id": job.node_id}
            yield format_html("{} {}", gettext("worker"), html.link(node, "node_change", node.pk) if node else known)
        yield format_html("{} {}", gettext("queue"), html.link(job.queue, "job_changelist", queue=job.queue))

    # The buttons: one job, or many at once, with a confirmation before, and an honest count after

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

    @page("<uuid:key>/operate/", "job_operate_one")
    @apart
    def operate_one(self, request: HttpRequest, key: uuid.UUID) -> HttpResponse:
        """Do it to one job, and go back to its page."""
        back = url_of("job_change", key)
        if (operation := self._asked(request)) is None:
            return HttpResponseRedirect(back)
        job = get_object_or_404(self.get_queryset(request), pk=key)
        outcome = self._attempt(request, operation, job)
        level = messages.SUCCESS if outcome.is_done else messages.WARNING
        messages.add_message(request, level, f"{job}: {outcome.says}")
        is_gone = outcome.is_done and isinstance(operation, Delete)
        return HttpResponseRedirect(url_of("job_changelist") if is_gone else back)

    @page("operate/", "job_operate")
    @apart
    def operate(self, request: HttpRequest) -> HttpResponse:
        """Do it to many, and go back to the list: work for two seconds, and let a page go on by itself."""
        back = f"{url_of('job_changelist')}?{request.GET.urlencode()}"
        if (operation := self._asked(request)) is None:
            return HttpResponseRedirect(back)
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
        level = messages.WARNING if progress.refused else messages.SUCCESS
        messages.add_message(request, level, progress.end(operation))
        return HttpResponseRedirect(back)

    def _asked(self, request: HttpRequest) -> Operation | None:
        """What is to be done; None if it was told something that cannot be, which a message says."""
        operation = OPERATIONS.get(request.POST.get("operation", ""))
        if operation is None or not may(request, operation.permission):
            raise PermissionDenied
        try:
            return operation.told(request.POST.get("value", ""), request.user.get_username(), why_of(request))
        except ValueError as exc:
            messages.error(request, str(exc))
            return None

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


#: What a page has a button or a link for.
COMMAND = re.compile(r"manage\.py jobs (run|retry|cancel|kill|resume|schedule --resume|why) ([^\s,;)]+)")


def _in_words(cure: str) -> str:
    """With the button's name, or a link, in the place of a command."""

    def word(found: re.Match[str]) -> str:
        verb, of = found.groups()
        if verb == "why" and (key := parse_uuid(of)) is not None:
            return html.link(gettext("Show the job"), "job_change", key)
        label = OPERATIONS[verb].label if verb in OPERATIONS else gettext("Resume")
        return format_html("<strong>{}</strong>", label)

    return mark_safe(COMMAND.sub(word, escape(cure)))


def _tree(own: Job, job: Job, called: dict[Any, list[Job]]) -> list[Any]:
    """A job and those that it called, as Django's ``unordered_list`` takes them; empty without any other."""
    below = [part for each in called.get(job.pk, ()) for part in _tree(own, each, called)]
    place = job.options.get("group_index") if isinstance(job.options, dict) else None
    state = str(State(job.state).label)
    if place is not None:
        state += ", " + gettext("part %(number)s") % {"number": place + 1}
    label = f"{job.task} {job.pk}"
    is_own = job.pk == own.pk
    shown = format_html("<strong>{}</strong>", label) if is_own else html.link(label, "job_change", job.pk)
    line = format_html("{} ({})", shown, state)
    return [line, below] if below else [line]
