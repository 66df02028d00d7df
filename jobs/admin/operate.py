"""The buttons: one job, or many at once, with a confirmation before, and an honest count after."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.signing import BadSignature, Signer
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext as translate
from django.utils.translation import ngettext

from jobs.models import Job
from jobs.operations import OPERATIONS, By, Operation, Outcome

#: Seconds of work in one request; the next one goes on where it ended.
BUDGET = 2.0

#: Rows of one query of a step, and refusals that are named.
STEP, NAMED = 100, 10

#: What is counted at the most before somebody is asked.
COUNTED = 100_000


def may(request: HttpRequest, operation: Operation) -> bool:
    return bool(request.user.has_perm(f"{Job._meta.app_label}.{operation.permission}"))


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
        raise PermissionDenied
    outcome = _attempt(admin, request, operation, job)
    level = messages.SUCCESS if outcome.is_done else messages.WARNING
    admin.message_user(request, f"{job}: {outcome.says}", level)
    return HttpResponseRedirect(reverse(f"admin:{Job._meta.app_label}_job_change", args=[job.pk]))


def _asked_for(admin: Any, request: HttpRequest) -> Operation:
    operation = OPERATIONS.get(request.POST.get("operation", ""))
    if operation is None or not (may(request, operation) and admin.has_view_permission(request)):
        raise PermissionDenied
    return operation


def _attempt(admin: Any, request: HttpRequest, operation: Operation, job: Job) -> Outcome:
    by = By(request.user.get_username(), request.POST.get("why", "").strip())
    with transaction.atomic():
        outcome = operation.attempt(job.pk, by)
        if outcome.is_done:
            said = f"{operation.label}: {outcome.says}" + (f" ({by.why})" if by.why else "")
            admin.log_change(request, job, said)
    return outcome


# Many


def confirm(admin: Any, request: HttpRequest, operation: Operation, chosen: QuerySet[Job]) -> HttpResponse:
    """Ask: these, or all that the list's filters match."""
    keys = [str(key) for key in chosen.values_list("pk", flat=True)]
    matching = _matching(admin, request, operation)
    context = {
        **admin.admin_site.each_context(request),
        "title": translate("%(label)s: are you sure?") % {"label": operation.label},
        "opts": admin.opts,
        "operation": operation,
        "number": len(keys),
        "keys": json.dumps(keys),
        "all": matching[: COUNTED + 1].count(),
        "at_most": COUNTED,
        "states": [state.label for state in dict.fromkeys((*operation.states, *operation.meant))],
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
    progress = _Progress.of(request)
    rows = _matching(admin, request, operation)
    if progress.keys is not None:
        rows = admin.get_queryset(request).filter(pk__in=progress.keys)
    deadline = time.monotonic() + BUDGET
    for job in _one_by_one(rows, progress.last):
        progress.note(job, _attempt(admin, request, operation, job))
        if time.monotonic() > deadline:
            return _go_on(admin, request, operation, progress)
    admin.message_user(request, progress.says(operation), messages.WARNING if progress.refused else messages.SUCCESS)
    return HttpResponseRedirect(f"{reverse(f'admin:{Job._meta.app_label}_job_changelist')}?{request.GET.urlencode()}")


def _one_by_one(rows: QuerySet[Job], last: str) -> Iterator[Job]:
    """In the order of their ids, from the one behind ``last`` on: each comes once, whatever becomes of it meanwhile."""
    while True:
        page = list((rows.filter(pk__gt=last) if last else rows).order_by("pk")[:STEP])
        yield from page
        if len(page) < STEP:
            return
        last = str(page[-1].pk)


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


def _matching(admin: Any, request: HttpRequest, operation: Operation) -> QuerySet[Job]:
    """All jobs that the list's filters and its search match, in a state out of which it is possible."""
    rows: QuerySet[Job] = admin.get_changelist_instance(request).get_queryset(request)
    return rows.filter(state__in={*operation.states, *operation.meant}).order_by("pk")


def _url(request: HttpRequest) -> str:
    return f"{reverse(f'admin:{Job._meta.app_label}_job_operate')}?{request.GET.urlencode()}"


class _Progress:
    """How far it is, carried from request to request by the page itself, and signed."""

    def __init__(
        self, keys: list[str] | None, last: str = "", done: int = 0, refused: int = 0, named: Sequence[str] = ()
    ) -> None:
        #: None: all that match.
        self.keys = keys
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
            return cls([str(uuid.UUID(key)) for key in json.loads(request.POST.get("keys", "[]"))])
        except (TypeError, ValueError):
            raise PermissionDenied from None

    def signed(self) -> str:
        return Signer(salt="jobs.admin").sign_object(vars(self))

    def note(self, job: Job, outcome: Outcome) -> None:
        self.last = str(job.pk)
        if outcome.is_done:
            self.done += 1
            return
        self.refused += 1
        if len(self.named) < NAMED:
            self.named.append(f"{job.pk} {outcome.says}")

    def says(self, operation: Operation) -> str:
        text = ngettext("%(number)s job %(participle)s", "%(number)s jobs %(participle)s", self.done)
        text %= {"number": self.done, "participle": operation.participle}
        if self.refused:
            text += translate(", %(number)s refused: ") % {"number": self.refused} + "; ".join(self.named)
            text += " ..." if self.refused > len(self.named) else ""
        return text
