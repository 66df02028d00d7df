"""What a person does to jobs: to one, or to many at once, with a confirmation before, and an honest count after."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.contrib import messages
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.admin.options import IS_POPUP_VAR, IncorrectLookupParameters
from django.contrib.admin.views.main import PAGE_VAR
from django.core.exceptions import PermissionDenied
from django.core.signing import BadSignature, Signer
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.utils import translation
from django.utils.translation import gettext, ngettext

from jobs.admin.base import ReadOnlyAdmin, apart, may, page, why_of
from jobs.admin.html import front, url_of
from jobs.lifecycle import queues
from jobs.models import Job, Pause, State
from jobs.models.values import parsed
from jobs.operations.actions import OPERATIONS, Delete, Operation, Outcome
from jobs.operations.selection import Selection

BUDGET = 2.0  #: Seconds of work in one request. The next request goes on from there.
STEP = 100  #: Rows that one query reads.
NAMED = 10  #: At most this many refusals are named.
COUNTED = 100_000  #: At most this many jobs are counted for the question.
FIRST = str(uuid.UUID(int=0))  #: Before all ids.


class OperableAdmin(ReadOnlyAdmin):
    """The buttons of a job's page, and the actions of the list."""

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """The operations, beside the site's own actions, which have permissions of their own."""
        found: dict[str, Any] = super().get_actions(request)
        for name, each in OPERATIONS.items():
            if may(request, each.permission) and IS_POPUP_VAR not in request.GET:
                found[name] = (partial(OperableAdmin.confirm, operation=each), name, each.label)
        return found

    def confirm(self, request: HttpRequest, chosen: QuerySet[Job], operation: Operation) -> HttpResponse:
        """Ask whether the chosen jobs are meant, or all that the list's filters match."""
        keys = [str(key) for key in chosen.values_list("pk", flat=True)[: self.list_per_page]]
        matching = self.matching(request, operation)
        return self.render(
            request,
            "job/confirm.html",
            gettext("%(label)s: are you sure?") % {"label": operation.label},
            operation=operation,
            number=len(keys),
            keys=json.dumps(keys),
            # Not sorted: so the count may stop where it has enough.
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
        """Operate on one job, and go back to its page."""
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
        """Operate on many jobs: work for two seconds, then let a page go on by itself. The list comes at the end."""
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

    @page("queue/", "queue_switch", "pause_queue")
    def switch(self, request: HttpRequest) -> HttpResponse:
        """Pause a queue, or resume it."""
        name, verb, why = request.POST.get("queue", ""), request.POST.get("verb"), why_of(request)
        if verb not in ("pause", "resume"):
            raise PermissionDenied
        try:
            if verb == "pause":
                done = queues.pause(name, request.user.get_username(), why)
                said = gettext("Paused: %s") if done else gettext("Paused already: %s")
            else:
                done = queues.resume(name)
                said = gettext("Resumed: %s") if done else gettext("Not paused: %s")
        except ValueError as exc:
            messages.error(request, str(exc))
        else:
            if done:
                self.log_change(request, Pause(queue=name), f"{verb} {why}".strip())
            messages.add_message(request, messages.SUCCESS if done else messages.WARNING, said % name)
        return HttpResponseRedirect(front())

    def _asked(self, request: HttpRequest) -> Operation | None:
        """The operation that is asked for. None if its value cannot be: then a message says why."""
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
            # All that is stored is English.
            with translation.override(None):
                said = f"{operation.label}: {outcome.says}" + (f" ({operation.why})" if operation.why else "")
            user: Any = request.user.pk
            flag = DELETION if isinstance(operation, Delete) else CHANGE
            LogEntry.objects.log_actions(user, [job], flag, change_message=said, single_object=True)

        return operation.attempt(job.pk, also=log)

    def matching(self, request: HttpRequest, operation: Operation) -> dict[State, QuerySet[Job]]:
        """All jobs that the list's filters and search match, by state: each state has an index of its own.

        As on the command line only the operation's usual states are meant, unless the list is filtered by a state.
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
    """The URL of the next step, with the list's filters. Without its page, which may be gone by then."""
    query = request.GET.copy()
    query.pop(PAGE_VAR, None)
    return f"{url_of('job_operate')}?{query.urlencode()}"


@dataclass
class _Progress:
    """How far the operation on many jobs is. The page carries it from request to request, signed."""

    #: The chosen jobs; None: all that match.
    keys: list[str] | None
    #: The present group of jobs, and the last job of it that was met.
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
            return cls([str(uuid.UUID(str(key))) for key in parsed(request.POST.get("keys", "[]"))])
        except (BadSignature, TypeError, ValueError):
            raise PermissionDenied from None

    def left(self, groups: list[QuerySet[Job]]) -> Iterator[Job]:
        """The jobs that are left, by state and id. A job whose state changes meanwhile is met in the next group."""
        while self.group < len(groups):
            rows = list(groups[self.group].filter(pk__gt=self.last).order_by("pk")[:STEP])
            yield from rows
            if len(rows) < STEP:
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
        """What to say at the end. Some of the chosen jobs may be deleted by now."""
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
