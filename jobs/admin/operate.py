"""The buttons: one job, or many at once, with a confirmation before, and an honest count after."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from django.contrib import messages
from django.contrib.admin import action
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import PAGE_VAR
from django.core.exceptions import PermissionDenied
from django.core.signing import BadSignature, Signer
from django.db import connections, transaction
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import translation
from django.utils.decorators import method_decorator
from django.utils.translation import gettext, ngettext
from django.views.decorators.http import require_POST

from jobs.admin.base import ReadOnlyAdmin, may, url_of
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

#: Before all ids.
FIRST = str(uuid.UUID(int=0))

#: What is counted at the most before somebody is asked.
COUNTED = 100_000


def _apart(view: Any) -> Any:
    """Each job in a transaction of its own, also with ATOMIC_REQUESTS: rows of jobs must not stay locked for long."""
    for alias in connections:
        view = transaction.non_atomic_requests(using=alias)(view)
    return view


def _action(operation: Operation) -> Any:
    """The operation among the actions of the list."""

    def confirm(admin: OperatingAdmin, request: HttpRequest, chosen: QuerySet[Job]) -> HttpResponse:
        """Ask: these, or all that the list's filters match."""
        keys = [str(key) for key in chosen.values_list("pk", flat=True)[: admin.list_per_page]]
        matching = admin.matching(request, operation)
        # Unsorted: a count that has an end need not read what comes after it.
        counts = [rows.order_by()[: COUNTED + 1].count() for rows in matching.values()]
        return admin.render(
            request,
            "job/confirm.html",
            gettext("%(label)s: are you sure?") % {"label": operation.label},
            operation=operation,
            number=len(keys),
            keys=json.dumps(keys),
            all=sum(counts),
            at_most=COUNTED,
            states=[state.label for state in dict.fromkeys((*operation.states, *operation.meant))],
            meant=[state.label for state in matching],
            action=_next(request),
            back=request.get_full_path(),
        )

    confirm.__name__ = operation.name
    return action(confirm, description=operation.label)


class OperatingAdmin(ReadOnlyAdmin):
    actions = tuple(map(_action, OPERATIONS.values()))

    def get_urls(self) -> list[Any]:
        one = self.path("<uuid:key>/operate/", "job_operate_one", self.operate)
        return [self.path("operate/", "job_operate", self.operate), one, *super().get_urls()]

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Actions that are not ours have permissions of their own."""
        refused = {name for name, each in OPERATIONS.items() if not may(request, each.permission)}
        return {name: each for name, each in super().get_actions(request).items() if name not in refused}

    def possible(self, request: HttpRequest, job: Job) -> list[Operation]:
        """What the reader may do to the job as it is."""
        asks = [each for each in OPERATIONS.values() if job.state in each.states or job.state in each.meant]
        return [each for each in asks if may(request, each.permission)]

    @_apart
    @method_decorator(require_POST)
    def operate(self, request: HttpRequest, key: uuid.UUID | None = None) -> HttpResponse:
        """Do it to one job and go back to its page, or to many and go back to the list."""
        operation = OPERATIONS.get(request.POST.get("operation", ""))
        if operation is None or not (may(request, operation.permission) and self.has_view_permission(request)):
            raise PermissionDenied
        listed = f"{url_of('job_changelist')}?{request.GET.urlencode()}"
        try:
            operation = operation.told(request.POST.get("value", ""))
        except ValueError as exc:
            self.message_user(request, str(exc), messages.ERROR)
            return HttpResponseRedirect(url_of("job_change", key) if key else listed)
        if key is None:
            return self._many(request, operation) or HttpResponseRedirect(listed)
        job = self.get_object(request, str(key))
        if job is None:
            raise Http404
        outcome = self._attempt(request, operation, job)
        level = messages.SUCCESS if outcome.is_done else messages.WARNING
        self.message_user(request, f"{job}: {outcome.says}", level)
        is_gone = outcome.is_done and operation is DELETE
        return HttpResponseRedirect(url_of("job_changelist") if is_gone else url_of("job_change", key))

    def _many(self, request: HttpRequest, operation: Operation) -> HttpResponse | None:
        """For two seconds; then a page that goes on by itself, or None: all is done, and said."""
        progress = _Progress.of(request)
        if progress.keys is None:
            groups = list(self.matching(request, operation).values())
        else:
            groups = [self.get_queryset(request).filter(pk__in=progress.keys)]
        deadline = time.monotonic() + BUDGET
        # In the order of a job's life, and of the ids: one that goes on meanwhile is not missed.
        while progress.group < len(groups):
            page = list(groups[progress.group].filter(pk__gt=progress.last).order_by("pk")[:STEP])
            for job in page:
                progress.note(job, self._attempt(request, operation, job))
                if time.monotonic() > deadline:
                    return self._go_on(request, operation, progress)
            if len(page) < STEP:
                progress.group, progress.last = progress.group + 1, FIRST
        progress.note_gone()
        level = messages.WARNING if progress.refused else messages.SUCCESS
        self.message_user(request, progress.says(operation), level)
        return None

    def _go_on(self, request: HttpRequest, operation: Operation, progress: _Progress) -> HttpResponse:
        return self.render(
            request,
            "job/progress.html",
            operation.label,
            operation=operation,
            progress=progress,
            state=Signer(salt="jobs.admin").sign_object(vars(progress)),
            why=request.POST.get("why", ""),
            action=_next(request),
        )

    def _attempt(self, request: HttpRequest, operation: Operation, job: Job) -> Outcome:
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

    def matching(self, request: HttpRequest, operation: Operation) -> dict[State, QuerySet[Job]]:
        """All jobs that the list's filters and search match, by state, because each state has an index of its own.

        They are of the states that are meant, as on the command line; of others only if the list is filtered by one.
        """
        try:
            rows = self.get_changelist_instance(request).queryset
        except IncorrectLookupParameters:
            raise PermissionDenied from None
        asked = request.GET.get(STATE_VAR)
        if asked is None:
            return {state: Selection(states=[state]).narrow(rows) for state in operation.meant}
        return {state: rows for state in (*operation.states, *operation.meant) if state == asked}


def _next(request: HttpRequest) -> str:
    """Of the next step, with the list's filters, and without its page: by then there may be none of that number."""
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

    def note(self, job: Job, outcome: Outcome) -> None:
        self.last = str(job.pk)
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
