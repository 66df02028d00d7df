"""The dashboard: is it healthy, what is slow, what failed, what waits."""

from itertools import groupby
from typing import Any

from django.contrib import admin
from django.core import checks
from django.core.handlers.asgi import ASGIRequest
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.urls import path
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobs.contrib.inspection.counts import at_least, worker_command
from jobs.contrib.inspection.view import progress_of
from jobs.contrib.operations.actions import OPERATIONS
from jobs.contrib.operator import live, workers
from jobs.contrib.operator.figures import FAILURES, QUEUES, Dashboard
from jobs.contrib.operator.models import Overview
from jobs.contrib.operator.pages.courses import CoursePages
from jobs.contrib.operator.pages.plot import LABELS, plot
from jobs.contrib.operator.problem import INFO, Kind, Link
from jobs.contrib.operator.problems import kinds, sentence
from jobs.contrib.operator.statistics import spent
from jobs.contrib.pages import html
from jobs.contrib.pages.base import may, page
from jobs.contrib.pages.html import url_if_any, url_of
from jobs.models import LIVE, Job, State
from jobs.models.values import as_uuid, parse_uuid

#: How many problems of a kind are shown unfolded: all kinds have to fit on the first screen.
OF_A_KIND = 2

BY = {"state": _("state"), "task": _("task"), "queue": _("queue")}


@admin.register(Overview)
class OverviewAdmin(CoursePages):
    """The dashboard, as an entry of the admin's index. It lists no rows."""

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, "view_job")

    def get_urls(self) -> list[Any]:
        """Without Django's page of a row: this model's rows are jobs, and it would show them unredacted."""
        board, *others = self.own_urls()
        # The admin's index links to this name.
        return [board, path("", board.callback, name=f"{self.opts.app_label}_overview_changelist"), *others]

    @page("", "dashboard", posts=False)
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        board = Dashboard(request.GET.get("span", "hour"), request.GET.get("by", "state"))
        failures, found = board.failures(), board.found
        queues = sorted(board.queues(), key=lambda each: not (each["paused"] or any(each[state] for state in LIVE)))
        known = kinds()
        # Problems of extensions may contain what this reader may not see.
        hidden = {name for name, kind in known.items() if kind.permission and not may(request, kind.permission)}
        problems = [each for each in board.problems if each.kind not in hidden]
        faults = [each for each in checks.run_checks(tags=["jobs"]) if not each.is_silenced()]
        said = progress_of(board.running)
        more = ngettext("%(number)s setting to look at", "%(number)s settings to look at", len(faults))
        # Looked up once for all rows: each look-up takes Django 0.1 ms.
        base = url_if_any("job_changelist")
        return self.render(
            request,
            "dashboard.html",
            gettext("Dashboard"),
            board=board,
            worker_command=worker_command(),
            worst=next((each.severity for each in problems if each.severity != INFO), "fine"),
            sentence=sentence(problems, [more % {"number": len(faults)}] if faults else []),
            problems=[
                (rows[:OF_A_KIND], rows[OF_A_KIND:])
                for _kind, group in groupby(problems, lambda each: (each.severity, each.kind))
                if (rows := [(each, *_ways(request, known[each.kind], each.about)) for each in group])
            ],
            parts=html.parts("dashboard", request, found),
            running=[(job, said.get(job.pk), html.arguments(job), f"{base}{job.pk}/operate/") for job in board.running],
            names={node["id"]: node["hostname"] for node in found["nodes"]},
            may_kill=base and may(request, "kill_job"),
            kill=OPERATIONS["kill"],
            killing={"operation": "kill"},
            **plot(
                board.chart(),
                gettext("Ended jobs, %(span)s, by %(by)s") % {"span": LABELS[board.span.name], "by": BY[board.by]},
                board.by == "state",
            ),
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
                    *(" · ".join(map(spent, each[name].values())) for name in ("ran", "waited")),
                )
                for each in board.durations()
            ],
            failures=failures[:FAILURES],
            rarer=max(0, len(failures) - FAILURES),
            queues=[
                each | {state: at_least(each[state], each["capped"]) for state in LIVE} for each in queues[:QUEUES]
            ],
            more_queues=max(0, len(queues) - QUEUES),
            checks=faults,
            may_pause=may(request, "pause_queue"),
        )

    @page("verify/", "verify", posts=False)
    def verify(self, request: HttpRequest) -> HttpResponse:
        """Show what ``manage.py jobs verify --no-watch`` finds now."""
        # Imported late: the operator's pages do not need that extension.
        from jobs.contrib.verify.verify import Unverifiable, verify

        title = gettext("The promise, verified")
        try:
            report = verify(patient=False)
        except Unverifiable as exc:
            return self.render(request, "verify.html", title, trouble=str(exc))
        # Some examples are not jobs, and some jobs are in another database.
        keys = {key: parse_uuid(key) for each in report.findings for key in each.examples}
        known = set(Job.objects.filter(pk__in=filter(None, keys.values())).values_list("pk", flat=True))
        findings = [(each, [(key, keys[key] in known) for key in each.examples]) for each in report.findings]
        return self.render(request, "verify.html", title, report=report, findings=findings)

    @page("live/", "live", posts=False)
    def live(self, request: HttpRequest) -> HttpResponseBase:
        """Tell a page when something changed. Under WSGI a stream would hold a thread, so there pages only poll."""
        if not isinstance(request, ASGIRequest):
            raise Http404
        if live.watch.is_full:
            return HttpResponse(status=503, headers={"Retry-After": live.FULL})
        try:
            since = float(request.GET.get("since", ""))
        except ValueError:
            since = 0.0
        # These keep proxies, and middleware that compresses, from holding the stream back.
        told = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no", "Content-Encoding": "identity"}
        return StreamingHttpResponse(live.stream(since), content_type="text/event-stream", headers=told)

    @page("seen/", "node_seen", "control_node")
    def seen(self, request: HttpRequest) -> HttpResponse:
        """Note that a person has seen that the workers died that the page named; others may have died since."""
        keys = [key for text in request.POST.get("nodes", "").split(",") if (key := as_uuid(text))]
        for node in workers.seen(keys):
            self.log_change(request, node, "seen")
        return HttpResponseRedirect(url_of("dashboard"))


def _ways(request: HttpRequest, kind: Kind, about: Any) -> list[tuple[Any, str, Any, Any] | None]:
    """The page that shows what a problem is about, and the button that fixes it, if this reader may use them."""

    def drawn(link: Link) -> tuple[Any, str, Any, Any] | None:
        url = url_if_any(link.page, *link.args, **link.query)
        if not url or (link.permission and not may(request, link.permission)):
            return None
        return link.label, url, link.fields, link.warns

    return [drawn(way(about)) if way else None for way in (kind.place, kind.button)]
