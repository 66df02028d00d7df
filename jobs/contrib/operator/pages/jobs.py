"""The list of jobs, with numbers, more filters, and what is done to many at once: asked before, counted after."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.options import IS_POPUP_VAR, IncorrectLookupParameters
from django.contrib.admin.views.main import PAGE_VAR
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.signing import BadSignature, Signer
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobs.conf import conf
from jobs.contrib.inspection import by_time
from jobs.contrib.inspection.counts import at_least
from jobs.contrib.operations.actions import OPERATIONS, Operation, Outcome
from jobs.contrib.operations.given import parsed
from jobs.contrib.operations.selection import FIELDS, Selection, Unreadable
from jobs.contrib.operator.models import Statistic
from jobs.contrib.operator.pages import timeline
from jobs.contrib.operator.status import Live
from jobs.contrib.pages import base
from jobs.contrib.pages.base import SEARCHED, apart, may, numbered, page
from jobs.contrib.pages.html import url_of
from jobs.contrib.pages.job import Created, JobAdmin, JobChangeList, StateFilter
from jobs.models import LIVE, UNSUCCESSFUL, Job, State

SEEN = 1000  #: The filter counts the failed ones among this many of the newest failed and cancelled jobs.

BUDGET = 2.0  #: Seconds of work in one request. The next request goes on from there.
STEP = 100  #: Rows that one query reads.
NAMED = 10  #: At most this many refusals are named.
COUNTED = 10_000  #: How many jobs of each state are looked at, to count the matching ones for the question.
FIRST = str(uuid.UUID(int=0))  #: Sorts before all ids.


class CountedStateFilter(StateFilter):
    def choices(self, changelist: Any) -> Iterator[Any]:
        """Add the numbers of the live states, and of the failed jobs, which may need a person."""
        live = changelist.live
        numbers: dict[str, str] = {state: at_least(live.total(state), live.is_capped) for state in LIVE}
        ended = Job.objects.filter(state__in=UNSUCCESSFUL).order_by("-pk").values_list("state", flat=True)
        seen = list(ended[:SEEN])
        numbers[State.FAILED] = at_least(seen.count(State.FAILED), len(seen) == SEEN)
        return numbered(super().choices(changelist), State.values, numbers)


class Narrow(admin.ListFilter):
    """One form for all fields of :class:`Selection`. Django has only lists of links."""

    title = _("more filters")
    template = "jobs/admin/job/filter.html"

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: type[Job], model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        # A filter must not reveal a redacted argument, or a key made of one.
        self.names = [name for name, its in FIELDS.items() if not its.is_secret or conf().REDACT is None]
        self.asked: dict[str, str] = {name: params.pop(name)[-1] for name in self.names if name in params}

    def expected_parameters(self) -> list[str | None]:
        return [*self.names]

    def has_output(self) -> bool:
        return True

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        try:
            wanted = Selection.of(self.asked)
            slow = {name: value for name, value in wanted.values.items() if not FIELDS[name].has_index}
            fast = {name: value for name, value in wanted.values.items() if name not in slow}
            queryset = Selection(values=fast).narrow(queryset)
            if slow:
                setattr(request, SEARCHED, queryset)
            return Selection(values=slow).narrow(queryset)
        except Unreadable as exc:
            messages.error(request, f"{FIELDS[exc.field].label}: {exc.why}")
            return queryset.none()

    def choices(self, changelist: Any) -> Iterator[dict[str, Any]]:
        others = [(name, value) for name, value in changelist.params.items() if name not in self.names]
        fields = [(name, FIELDS[name], self.asked.get(name, "")) for name in self.names]
        yield {"others": others, "fields": fields}


class Queues(admin.ListFilter):
    """Links to the queues in which jobs wait or run, with their numbers. :class:`Narrow` does the filtering."""

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


class LiveChangeList(JobChangeList):
    @cached_property
    def live(self) -> Live:
        return Live()

    # Ids are in the order of time, except ids that another program made.

    @property
    def _is_by_time(self) -> bool:
        return self.order[0].lstrip("-") == "pk"

    def _page(self, cursor: str, is_back: bool, number: int) -> list[Any]:
        if not self._is_by_time:
            return super()._page(cursor, is_back, number)
        place, is_down = self._place(cursor), self.order[0].startswith("-") != is_back
        if cursor and place is None:
            return []
        rows = self.queryset
        found = by_time.kinds(rows, is_down, place)
        if self.looked_at and (last := self._place(self.looked_at[1])):
            upto = last.beyond(not is_down, or_here=True)
            found = [rows.filter(each) for rows, each in zip(found, upto, strict=True)]
        return by_time.first(found, number, is_down)

    def _place(self, cursor: str) -> by_time.Place | None:
        try:
            key = self.opts.pk.to_python(cursor) if cursor else None
        except ValidationError as exc:
            raise IncorrectLookupParameters from exc
        job = Job.objects.using(self.queryset.db).filter(pk=key).only("made_at", "run_at").first() if key else None
        return None if job is None else by_time.Place.of(job)

    def _reach(self, request: HttpRequest, cursor: str, is_back: bool) -> list[Any] | None:
        every = getattr(request, SEARCHED, None)
        if every is None or not self._is_by_time:
            return super()._reach(request, cursor, is_back)
        is_down = self.order[0].startswith("-") != is_back
        rows = every.values_list("pk", "made_at", "run_at", named=True)
        ends = [
            list(kind[base.LOOKED_AT - 1 : base.LOOKED_AT + 1])
            for kind in by_time.kinds(rows, is_down, self._place(cursor))
        ]
        near = sorted((end[0] for end in ends if len(end) == 2), key=by_time.Place.of, reverse=is_down)
        return [near[0].pk, near[0].pk] if near else None


# Replace the core's page.
admin.site.unregister(Job)


@admin.register(Job)
class ManyJobsAdmin(JobAdmin):
    # A list of all tasks would read the whole table.
    list_filter = (("state", CountedStateFilter), Queues, Created, Narrow)
    changelist = LiveChangeList

    def about(self, request: HttpRequest, row: Job) -> dict[str, Any]:
        return {**super().about(request, row), "timeline": timeline.of(row)}

    def known_tasks(self) -> set[str]:
        """Also tasks that no longer exist: the statistics name them."""
        return super().known_tasks() | set(Statistic.objects.values_list("task", flat=True).distinct())

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """The operations, beside the site's own actions, which have their own permissions."""
        found: dict[str, Any] = super().get_actions(request)
        for name, each in OPERATIONS.items():
            if may(request, each.permission) and IS_POPUP_VAR not in request.GET:
                found[name] = (partial(ManyJobsAdmin.confirm, operation=each), name, each.label)
        return found

    def confirm(self, request: HttpRequest, chosen: QuerySet[Job], operation: Operation) -> HttpResponse:
        """Ask whether the chosen jobs are meant, or all that the list's filters match."""
        keys = [str(key) for key in chosen.values_list("pk", flat=True)[: self.list_per_page]]
        matching = self.matching(request, operation)
        counted = [_count(rows, state) for state, rows in matching.items()]
        return self.render(
            request,
            "job/confirm.html",
            gettext("%(label)s: are you sure?") % {"label": operation.label},
            operation=operation,
            number=len(keys),
            keys=json.dumps(keys),
            all=sum(number for number, _ in counted),
            is_all=all(is_all for _, is_all in counted),
            states=[state.label for state in operation.states],
            meant=[state.label for state in matching],
            action=_next(request),
            back=request.get_full_path(),
        )

    @page("operate/", "job_operate")
    @apart
    def operate(self, request: HttpRequest) -> HttpResponse:
        """Operate on many jobs: work for two seconds, then show a page that goes on by itself; at the end, the list."""
        back = f"{url_of('job_changelist')}?{request.GET.urlencode()}"
        if (operation := self.asked(request)) is None:
            return HttpResponseRedirect(back)
        progress = _Progress.of(request)
        if progress.keys is None:
            groups = list(self.matching(request, operation).values())
        else:
            groups = [self.get_queryset(request).filter(pk__in=progress.keys)]
        deadline = time.monotonic() + BUDGET
        for job in progress.left(groups):
            progress.note(job, self.operate_on(request, operation, job))
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

    def matching(self, request: HttpRequest, operation: Operation) -> dict[State, QuerySet[Job]]:
        """All jobs that the list's filters and search match, by state: each state has an index of its own.

        As on the command line, only the operation's usual states count, unless the list is filtered by a state.
        """
        try:
            rows = self.get_changelist_instance(request).queryset
        except IncorrectLookupParameters:
            raise PermissionDenied from None
        asked = request.GET.get("state__exact")
        if asked is None:
            return {state: Selection(states=[state]).narrow(rows) for state in operation.meant}
        return {state: rows for state in operation.states if state == asked}


def _count(rows: QuerySet[Job], state: State) -> tuple[int, bool]:
    """How many there are, and whether that is all of them. Of ended jobs only the newest are looked at."""
    # Unsorted, and without the list's columns.
    found = rows.order_by().values("pk")
    if state in LIVE:
        # One more than is reported: if there are exactly that many, these are all.
        number = found[: COUNTED + 1].count()
        return min(number, COUNTED), number <= COUNTED
    newest = Selection(states=[state]).rows(rows.db).order_by("-pk").values_list("pk", flat=True)
    end = list(newest[COUNTED - 1 : COUNTED + 1])
    is_all = len(end) < 2
    return (found if is_all else found.filter(pk__gte=end[0])).count(), is_all


def _next(request: HttpRequest) -> str:
    """The URL of the next step, with the list's filters, but without its page number: that page may be gone by then."""
    query = request.GET.copy()
    query.pop(PAGE_VAR, None)
    return f"{url_of('job_operate')}?{query.urlencode()}"


@dataclass
class _Progress:
    """How far the operation on many jobs is. The page carries it from request to request, signed."""

    #: The chosen jobs; None: all that match.
    keys: list[str] | None
    #: The present group of jobs, and the last job of it that was handled.
    group: int = 0
    last: str = FIRST
    done: int = 0
    refused: int = 0
    named: list[str] = field(default_factory=list)
    #: How many were done in another manner, by its words.
    others: dict[str, int] = field(default_factory=dict)

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
        """The remaining jobs, by state and id. A job whose state changes meanwhile comes again in the next group."""
        while self.group < len(groups):
            rows = list(groups[self.group].filter(pk__gt=self.last).order_by("pk")[:STEP])
            yield from rows
            if len(rows) < STEP:
                self.group, self.last = self.group + 1, FIRST

    def note(self, job: Job, outcome: Outcome) -> None:
        self.last = str(job.pk)
        if outcome.is_done:
            self.done += 1
            if outcome.is_other:
                self.others[outcome.says] = self.others.get(outcome.says, 0) + 1
            return
        self.refused += 1
        if len(self.named) < NAMED:
            self.named.append(f"{job.pk} {outcome.says}")

    def end(self, operation: Operation) -> str:
        """The message at the end. Some of the chosen jobs may have been deleted by now."""
        gone = len(self.keys) - self.done - self.refused if self.keys is not None else 0
        if gone > 0:
            self.refused += gone
            self.named.append(ngettext("%(number)s is gone", "%(number)s are gone", gone) % {"number": gone})
        text = ngettext("%(number)s job %(participle)s", "%(number)s jobs %(participle)s", self.done)
        text %= {"number": self.done, "participle": operation.participle}
        for says, count in self.others.items():
            text += ", " + gettext("of these %(number)s: %(says)s") % {"number": count, "says": says}
        if self.refused:
            text += gettext(", %(number)s refused: ") % {"number": self.refused} + "; ".join(self.named)
            text += " ..." if self.refused > len(self.named) else ""
        return text
