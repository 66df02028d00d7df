"""The dashboard: is it healthy, what is slow, what failed, and what waits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin, messages
from django.core import checks
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs import queues
from jobs.admin.chart import draw
from jobs.admin.readonly import ReadOnlyAdmin
from jobs.admin.related import job_url
from jobs.arguments import parse_uuid, scrub
from jobs.census import LIVE, at_least
from jobs.dashboard import FAILURES, SPANS, Dashboard
from jobs.models import Job, Overview, Pause, State
from jobs.times import duration

LABELS = {"hour": _("last hour"), "day": _("last day"), "week": _("last week")}
BY = {"state": _("state"), "task": _("task"), "queue": _("queue")}


@admin.register(Overview)
class OverviewAdmin(ReadOnlyAdmin):
    """A place in the admin's index for the dashboard; it lists no rows."""

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.has_perm(f"{self.opts.app_label}.view_job"))

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def get_urls(self) -> list[Any]:
        wrap = self.admin_site.admin_view
        return [
            path("", wrap(self.changelist_view), name=f"{self.opts.app_label}_dashboard"),
            # The name by which the admin's index knows it. No page of a row: this model's rows are jobs, unredacted.
            path("", wrap(self.changelist_view), name=f"{self.opts.app_label}_overview_changelist"),
            path("verify/", wrap(self.verify), name=f"{self.opts.app_label}_verify"),
            path("queue/", wrap(self.switch), name=f"{self.opts.app_label}_queue_switch"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        board = Dashboard(request.GET.get("span", "hour"), request.GET.get("by", "state"))
        chart, failures = board.chart(), board.failures()
        names = {str(state): str(state.label) for state in State} if board.by == "state" else {"": gettext("others")}
        label = gettext("Ended jobs, %(span)s, by %(by)s") % {"span": LABELS[board.span.name], "by": BY[board.by]}
        is_capped = board.found["capped"]
        context = {
            **self.admin_site.each_context(request),
            "title": gettext("Dashboard"),
            "opts": self.opts,
            "board": board,
            "live": [(state, state.label, at_least(board.found["jobs"][state], is_capped)) for state in LIVE],
            "ended": [(state, State(state).label, count) for state, count in board.ended().items()],
            "svg": draw(chart, label, names),
            "chart_label": label,
            "legend": [(name, names.get(name, name), sum(values)) for name, values in chart.series.items()],
            "spans": [(name, LABELS[name]) for name in SPANS],
            "bys": list(BY.items()),
            "durations": [
                {**each, "ran": _spoken(each["ran"]), "waited": _spoken(each["waited"])} for each in board.durations()
            ],
            "failures": failures[:FAILURES],
            "rarer": max(0, len(failures) - FAILURES),
            "queues": [
                {
                    **each,
                    **{state: at_least(each[state], each["capped"]) for state in LIVE},
                    "oldest": _said(each["oldest"]),
                    "drained": _said(each["drained"]),
                }
                for each in board.queues()
            ],
            "nodes": [
                {
                    **node,
                    "up": duration(node["age_seconds"]),
                    "beat": _said(node["beat_seconds"]),
                    "url": reverse(f"admin:{self.opts.app_label}_node_change", args=[node["id"]]),
                }
                for node in board.found["nodes"]
            ],
            "checks": checks.run_checks(tags=["jobs"]),
            "verify_url": reverse(f"admin:{self.opts.app_label}_verify"),
            "may_pause": self._may_pause(request),
            "switch": reverse(f"admin:{self.opts.app_label}_queue_switch"),
            "base": reverse(f"admin:{self.opts.app_label}_job_changelist"),
        }
        return TemplateResponse(request, "admin/jobs/dashboard.html", context)

    def verify(self, request: HttpRequest) -> HttpResponse:
        """What ``manage.py jobs verify --no-watch`` finds, now."""
        # Not above: it reaches the transport, which may be what Celery imports when it imports the admin.
        from jobs.verify import Unverifiable, verify

        if not self.has_view_permission(request):
            raise PermissionDenied
        context = {
            **self.admin_site.each_context(request),
            "title": gettext("The promise, verified"),
            "opts": self.opts,
        }
        try:
            report = verify(patient=False)
        except Unverifiable as exc:
            context["trouble"] = str(exc)
        else:
            context["report"] = report
            pages = _pages(key for each in report.findings for key in each.examples)
            context["findings"] = [
                (each, [(key, pages.get(key, "")) for key in each.examples]) for each in report.findings
            ]
        return TemplateResponse(request, "admin/jobs/verify.html", context)

    def _may_pause(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm(f"{self.opts.app_label}.pause_queue"))

    def switch(self, request: HttpRequest) -> HttpResponse:
        """POST: pause a queue, or resume it."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        name, verb = request.POST.get("queue", ""), request.POST.get("verb")
        if verb not in ("pause", "resume") or not (self._may_pause(request) and self.has_view_permission(request)):
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
        return HttpResponseRedirect(reverse(f"admin:{self.opts.app_label}_dashboard"))


def _pages(keys: Iterable[str]) -> dict[str, str]:
    """Of those examples that are jobs (and not nodes, or in another database) the page."""
    found = {key: job for key in keys if (job := parse_uuid(key)) is not None}
    known = set(Job.objects.filter(pk__in=found.values()).values_list("pk", flat=True))
    return {key: job_url(job) for key, job in found.items() if job in known}


def _said(seconds: float | None) -> str:
    return "" if seconds is None else duration(seconds)


def _spoken(percentiles: dict[str, float | None]) -> list[str]:
    return ["-" if value is None else _short(value) for value in percentiles.values()]


def _short(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else duration(seconds)
