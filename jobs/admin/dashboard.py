"""The dashboard: is it healthy, what is slow, what failed, and what waits."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

from django.contrib import admin, messages
from django.core import checks
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.decorators import method_decorator
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from jobs import queues
from jobs.admin.base import ReadOnlyAdmin, may, url_of
from jobs.arguments import parse_uuid, scrub
from jobs.census import LIVE, at_least
from jobs.dashboard import FAILURES, Dashboard
from jobs.models import Job, Overview, Pause, State
from jobs.times import duration

LABELS = {"hour": _("last hour"), "day": _("last day"), "week": _("last week")}
BY = {"state": _("state"), "task": _("task"), "queue": _("queue")}


@admin.register(Overview)
class OverviewAdmin(ReadOnlyAdmin):
    """A place in the admin's index for the dashboard; it lists no rows."""

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, "view_job")

    def get_urls(self) -> list[Any]:
        return [
            self.path("", "dashboard", self.changelist_view),
            # The name by which the admin's index knows it. No page of a row: this model's rows are jobs, unredacted.
            self.path("", "overview_changelist", self.changelist_view),
            self.path("verify/", "verify", self.verify),
            self.path("queue/", "queue_switch", self.switch),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        board = Dashboard(request.GET.get("span", "hour"), request.GET.get("by", "state"))
        chart, failures, found = board.chart(), board.failures(), board.found
        by_state = board.by == "state"
        names = {state.value: state.label for state in State} if by_state else {"": gettext("others")}
        # A state has colours of its own.
        series = [
            (name if by_state else number, names.get(name, name), counts)
            for number, (name, counts) in enumerate(chart.series.items())
        ]
        return self.render(
            request,
            "dashboard.html",
            gettext("Dashboard"),
            board=board,
            chart=chart,
            bars=_bars(chart.begins, series, chart.highest),
            chart_label=gettext("Ended jobs, %(span)s, by %(by)s")
            % {"span": LABELS[board.span.name], "by": BY[board.by]},
            legend=[(look, label, sum(counts)) for look, label, counts in series],
            tiles=[
                *((state, state.label, at_least(found["jobs"][state], found["capped"])) for state in LIVE),
                *((state, State(state).label, count) for state, count in board.ended().items()),
            ],
            spans=LABELS.items(),
            bys=BY.items(),
            durations=[
                (
                    each["task"],
                    each["count"],
                    [_short(value) for part in ("ran", "waited") for value in each[part].values()],
                )
                for each in board.durations()
            ],
            failures=failures[:FAILURES],
            rarer=max(0, len(failures) - FAILURES),
            queues=[
                {
                    **each,
                    **{state: at_least(each[state], each["capped"]) for state in LIVE},
                    "oldest": _said(each["oldest"]),
                    "drained": _said(each["drained"]),
                }
                for each in board.queues()
            ],
            nodes=[
                {**node, "up": _said(node["age_seconds"]), "beat": _said(node["beat_seconds"])}
                for node in found["nodes"]
            ],
            checks=checks.run_checks(tags=["jobs"]),
            may_pause=may(request, "pause_queue"),
        )

    def verify(self, request: HttpRequest) -> HttpResponse:
        """What ``manage.py jobs verify --no-watch`` finds, now."""
        # Not above: it reaches the transport, which may be what Celery imports when it imports the admin.
        from jobs.verify import Unverifiable, verify

        if not self.has_view_permission(request):
            raise PermissionDenied
        context: dict[str, Any] = {}
        try:
            report = verify(patient=False)
        except Unverifiable as exc:
            context["trouble"] = str(exc)
        else:
            # Not all examples are jobs, and not all jobs are here.
            keys = {key: parse_uuid(key) for each in report.findings for key in each.examples}
            known = set(Job.objects.filter(pk__in=filter(None, keys.values())).values_list("pk", flat=True))
            context["report"] = report
            context["findings"] = [
                (each, [(key, keys[key] in known) for key in each.examples]) for each in report.findings
            ]
        return self.render(request, "verify.html", gettext("The promise, verified"), **context)

    @method_decorator(require_POST)
    def switch(self, request: HttpRequest) -> HttpResponse:
        """Pause a queue, or resume it."""
        name, verb = request.POST.get("queue", ""), request.POST.get("verb")
        if verb not in ("pause", "resume") or not (may(request, "pause_queue") and self.has_view_permission(request)):
            raise PermissionDenied
        why = scrub(request.POST.get("why", "").strip(), 1000)
        try:
            if verb == "pause":
                done = queues.pause(name, request.user.get_username(), why)
                said = gettext("Paused: %s") if done else gettext("Paused already: %s")
            else:
                done = queues.resume(name)
                said = gettext("Resumed: %s") if done else gettext("Not paused: %s")
        except ValueError as exc:
            self.message_user(request, str(exc), messages.ERROR)
        else:
            if done:
                self.log_change(request, Pause(queue=name), f"{verb} {why}".strip())
            self.message_user(request, said % name, messages.SUCCESS if done else messages.WARNING)
        return HttpResponseRedirect(url_of("dashboard"))


def _bars(begins: list[datetime.datetime], series: list[tuple[Any, Any, list[int]]], highest: int) -> Iterator[Any]:
    """Look, number of the stack, top, count, begin and label of each, in jobs."""
    for number, begin in enumerate(begins):
        top = highest
        for look, label, counts in series:
            if count := counts[number]:
                top -= count
                yield look, number, top, count, begin, label


def _said(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)


def _short(seconds: float | None) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds is not None and seconds < 1 else _said(seconds)
