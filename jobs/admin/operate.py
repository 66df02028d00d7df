"""The buttons: one job, or many at once, with a confirmation before, and an honest count after."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from django.contrib import messages
from django.contrib.admin import action as decorator
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import PAGE_VAR
from django.core.exceptions import PermissionDenied
from django.core.signing import BadSignature, Signer
from django.db import connections, transaction
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import translation
from django.utils.translation import gettext, ngettext

from jobs.arguments import scrub
from jobs.models import Job, State
from jobs.operations import DELETE, OPERATIONS, By, Operation, Outcome
from jobs.selection import Selection

#: Seconds of work in one request; the next one goes on where it ended.
BUDGET = 2.0

#: Rows of one query of a step, and refusals that are named.
STEP, NAMED = 100, 10

#: The list's filter by state.
STATE_VAR = "state__exact"

#: What is counted at the most before somebody is asked.
COUNTED = 100_000


def may(request: HttpRequest, operation: Operation) -> bool:
    return bool(request.user.has_perm(f"{Job._meta.app_label}.{operation.permission}"))


def is_allowed(request: HttpRequest, action: str) -> bool:
    """Of the list; those that are not ours have permissions of their own."""
    return action not in OPERATIONS or may(request, OPERATIONS[action])


def possible(request: HttpRequest, job: Job) -> list[Operation]:
    """What the reader may do to the job as it is."""
    asks = [each for each in OPERATIONS.values() if job.state in each.states or job.state in each.meant]
    return [each for each in asks if may(request, each)]


def one(admin: Any, request: HttpRequest, key: str) -> HttpResponse:
    """POST: do it to one job, and go back to its page."""
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    operation = _asked_for(admin, request)
    job = admin.get_object(request, key)
    if job is None:
        raise Http404
    back = reverse(f"admin:{Job._meta.app_label}_job_change", args=[job.pk])
    try:
        outcome = _attempt(admin, request, operation.told(_value(request)), job)
    except ValueError as exc:
        admin.message_user(request, str(exc), messages.ERROR)
        return HttpResponseRedirect(back)
    level = messages.SUCCESS if outcome.is_done else messages.WARNING
    admin.message_user(request, f"{job}: {outcome.says}", level)
    if outcome.is_done and operation is DELETE:
        back = reverse(f"admin:{Job._meta.app_label}_job_changelist")
    return HttpResponseRedirect(back)


def action(operation: Operation) -> Any:
    """The operation among the actions of the list."""

    @decorator(description=operation.label)
    def act(admin: Any, request: HttpRequest, chosen: QuerySet[Job]) -> HttpResponse:
        return confirm(admin, request, operation, chosen)

    act.__name__ = operation.name
    return act


def _asked_for(admin: Any, request: HttpRequest) -> Operation:
    operation = OPERATIONS.get(request.POST.get("operation", ""))
    if operation is None or not (may(request, operation) and admin.has_view_permission(request)):
        raise PermissionDenied
    return operation


def _value(request: HttpRequest) -> str:
    return str(request.POST.get("value", ""))


def _attempt(admin: Any, request: HttpRequest, operation: Operation, job: Job) -> Outcome:
    by = By(request.user.get_username(), scrub(request.POST.get("why", "").strip(), 1000))
    with transaction.atomic():
        outcome = operation.attempt(job.pk, by)
        if outcome.is_done:
            # English, as all that is stored.
            with translation.override(None):
                said = f"{operation.label}: {outcome.says}" + (f" ({by.why})" if by.why else "")
            user: Any = request.user.pk
            flag = DELETION if operation is DELETE else CHANGE
            LogEntry.objects.log_actions(user, [job], flag, change_message=said, single_object=True)
    return outcome


# Many


def confirm(admin: Any, request: HttpRequest, operation: Operation, chosen: QuerySet[Job]) -> HttpResponse:
    """Ask: these, or all that the list's filters match."""
    keys = [str(key) for key in chosen.values_list("pk", flat=True)[: admin.list_per_page]]
    # Unsorted: a count that has an end need not read what comes after it.
    counts = [rows.order_by()[: COUNTED + 1].count() for rows in _matching(admin, request, operation).values()]
    context = {
        **admin.admin_site.each_context(request),
        "title": gettext("%(label)s: are you sure?") % {"label": operation.label},
        "opts": admin.opts,
        "operation": operation,
        "number": len(keys),
        "keys": json.dumps(keys),
        "all": sum(counts),
        "at_most": COUNTED,
        "states": [state.label for state in dict.fromkeys((*operation.states, *operation.meant))],
        "meant": [State(state).label for state in _states(request, operation)],
        "action": _url(request),
        "back": request.get_full_path(),
        "media": admin.media,
    }
    return TemplateResponse(request, "admin/jobs/job/confirm.html", context)


def many(admin: Any, request: HttpRequest) -> HttpResponse:
    """POST: do it for two seconds, and say how far that went; the page goes on by itself."""
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    operation = _asked_for(admin, request)
    try:
        operation = operation.told(_value(request))
    except ValueError as exc:
        admin.message_user(request, str(exc), messages.ERROR)
        return HttpResponseRedirect(_list(request))
    progress = _Progress.of(request)
    if progress.keys is None:
        groups = _matching(admin, request, operation)
    else:
        groups = {"": admin.get_queryset(request).filter(pk__in=progress.keys)}
    deadline = time.monotonic() + BUDGET
    for group, job in _one_by_one(groups, progress.group, progress.last):
        progress.note(group, job, _attempt(admin, request, operation, job))
        if time.monotonic() > deadline:
            return _go_on(admin, request, operation, progress)
    progress.note_gone()
    admin.message_user(request, progress.says(operation), messages.WARNING if progress.refused else messages.SUCCESS)
    return HttpResponseRedirect(_list(request))


def _list(request: HttpRequest) -> str:
    return f"{reverse(f'admin:{Job._meta.app_label}_job_changelist')}?{request.GET.urlencode()}"


def apart(view: Any) -> Any:
    """Each job in a transaction of its own, also with ATOMIC_REQUESTS: rows of jobs must not stay locked for long."""
    for alias in connections:
        view = transaction.non_atomic_requests(using=alias)(view)
    return view


def _one_by_one(groups: dict[str, QuerySet[Job]], group: str, last: str) -> Iterator[tuple[str, Job]]:
    """In the order of their ids, from the one behind ``last`` on: each comes once, whatever becomes of it meanwhile."""
    names = list(groups)
    for name in names[names.index(group) if group in names else 0 :]:
        behind = last if name == group else ""
        while True:
            rows = groups[name].filter(pk__gt=behind) if behind else groups[name]
            page = list(rows.order_by("pk")[:STEP])
            yield from ((name, job) for job in page)
            if len(page) < STEP:
                break
            behind = str(page[-1].pk)


def _go_on(admin: Any, request: HttpRequest, operation: Operation, progress: _Progress) -> HttpResponse:
    context = {
        **admin.admin_site.each_context(request),
        "title": operation.label,
        "opts": admin.opts,
        "operation": operation,
        "progress": progress,
        "state": progress.signed(),
        "why": request.POST.get("why", ""),
        "action": _url(request),
        "media": admin.media,
    }
    return TemplateResponse(request, "admin/jobs/job/progress.html", context)


def _matching(admin: Any, request: HttpRequest, operation: Operation) -> dict[str, QuerySet[Job]]:
    """All jobs that the list's filters and search match, of each state that is meant: each has an index of its own."""
    try:
        rows: QuerySet[Job] = admin.get_changelist_instance(request).get_queryset(request)
    except IncorrectLookupParameters:
        raise PermissionDenied from None
    rows = rows.order_by("pk")
    if STATE_VAR in request.GET:
        return dict.fromkeys(_states(request, operation), rows)
    return {state: Selection(states=[state]).narrow(rows) for state in _states(request, operation)}


def _states(request: HttpRequest, operation: Operation) -> list[str]:
    """Those that are meant, as on the command line; others only if the list is filtered by their state."""
    asked = request.GET.get(STATE_VAR)
    if asked is None:
        return [str(state) for state in operation.meant]
    return [str(state) for state in dict.fromkeys((*operation.states, *operation.meant)) if state == asked]


def _url(request: HttpRequest) -> str:
    """Of the next step, with the list's filters, and without its page: by then there may be none of that number."""
    query = request.GET.copy()
    query.pop(PAGE_VAR, None)
    return f"{reverse(f'admin:{Job._meta.app_label}_job_operate')}?{query.urlencode()}"


class _Progress:
    """How far it is, carried from request to request by the page itself, and signed."""

    def __init__(
        self,
        keys: list[str] | None,
        group: str = "",
        last: str = "",
        done: int = 0,
        refused: int = 0,
        named: Sequence[str] = (),
    ) -> None:
        #: None: all that match.
        self.keys = keys
        #: Where it is: in which state's jobs, and the last of them.
        self.group = group
        self.last = last
        self.done = done
        self.refused = refused
        self.named: list[str] = list(named)

    @classmethod
    def of(cls, request: HttpRequest) -> _Progress:
        if state := request.POST.get("state"):
            try:
                return cls(**Signer(salt="jobs.admin").unsign_object(state))
            except BadSignature:
                raise PermissionDenied from None
        if request.POST.get("scope") == "all":
            return cls(None)
        try:
            return cls([str(uuid.UUID(str(key))) for key in json.loads(request.POST.get("keys", "[]"))])
        except (TypeError, ValueError):
            raise PermissionDenied from None

    def signed(self) -> str:
        return Signer(salt="jobs.admin").sign_object(vars(self))

    def note(self, group: str, job: Job, outcome: Outcome) -> None:
        self.group, self.last = group, str(job.pk)
        if outcome.is_done:
            self.done += 1
            return
        self.refused += 1
        if len(self.named) < NAMED:
            self.named.append(f"{job.pk} {outcome.says}")

    def note_gone(self) -> None:
        """Of those that were chosen some may be deleted by now."""
        gone = len(self.keys) - self.done - self.refused if self.keys is not None else 0
        if gone > 0:
            self.refused += gone
            self.named.append(ngettext("%(number)s is gone", "%(number)s are gone", gone) % {"number": gone})

    def says(self, operation: Operation) -> str:
        text = ngettext("%(number)s job %(participle)s", "%(number)s jobs %(participle)s", self.done)
        text %= {"number": self.done, "participle": operation.participle}
        if self.refused:
            text += gettext(", %(number)s refused: ") % {"number": self.refused} + "; ".join(self.named)
            text += " ..." if self.refused > len(self.named) else ""
        return text
