"""The dashboard: is it healthy, what is slow, what failed, what waits; and the workers, each with what it does."""

import datetime
import math
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.core import checks
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.utils.html import format_html
from django.utils.translation import gettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from jobs.admin.base import NOTHING, ReadOnlyAdmin, badge, column, may, time_column, url_of
from jobs.arguments import parse_uuid, scrub
from jobs.inspection import census
from jobs.inspection.census import LIVE, at_least
from jobs.inspection.dashboard import FAILURES, Dashboard
from jobs.inspection.times import duration
from jobs.lifecycle import queues
from jobs.models import Job, Node, Overview, Pause, State
from jobs.operations import workers
from jobs.operations.selection import DIGITS

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
            self.path("queue/", "queue_switch", self.switch, posts=True),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
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
                (each["task"], each["count"], map(_short, (*each["ran"].values(), *each["waited"].values())))
                for each in board.durations()
            ],
            failures=failures[:FAILURES],
            rarer=max(0, len(failures) - FAILURES),
            queues=[
                each
                | {state: at_least(each[state], each["capped"]) for state in LIVE}
                | {name: duration(each[name]) for name in ("oldest", "drained")}
                for each in board.queues()
            ],
            nodes=[
                {**node, "up": duration(node["age_seconds"]), "beat": duration(node["beat_seconds"])}
                for node in found["nodes"]
            ],
            checks=checks.run_checks(tags=["jobs"]),
            may_pause=may(request, "pause_queue"),
        )

    def verify(self, request: HttpRequest) -> HttpResponse:
        """What ``manage.py jobs verify --no-watch`` finds, now."""
        # Imported late: it imports the transport, and that import may be what made Celery import the admin.
        from jobs.inspection.verify import Unverifiable, verify

        title = gettext("The promise, verified")
        try:
            report = verify(patient=False)
        except Unverifiable as exc:
            return self.render(request, "verify.html", title, trouble=str(exc))
        # Not all examples are jobs, and not all jobs are here.
        keys = {key: parse_uuid(key) for each in report.findings for key in each.examples}
        known = set(Job.objects.filter(pk__in=filter(None, keys.values())).values_list("pk", flat=True))
        findings = [(each, [(key, keys[key] in known) for key in each.examples]) for each in report.findings]
        return self.render(request, "verify.html", title, report=report, findings=findings)

    def switch(self, request: HttpRequest) -> HttpResponse:
        """Pause a queue, or resume it."""
        name, verb = request.POST.get("queue", ""), request.POST.get("verb")
        if verb not in ("pause", "resume") or not may(request, "pause_queue"):
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


def _short(seconds: float | None) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds is not None and seconds < 1 else duration(seconds)


# The workers


def look_at(nodes: Iterable[Any]) -> None:
    """Give each what its row does not say: its silence, and how many jobs it runs."""
    running = census.running_by_node()
    for node in census.look_at(nodes):
        node.running = running[node.pk]


class NodeChangeList(ChangeList):
    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        look_at(self.result_list)


@admin.register(Node)
class NodeAdmin(ReadOnlyAdmin):
    list_display = (
        "short_id", "status", "hostname", "pid", "beat", "running", "processes", "served", "started", "died",
    )  # fmt: skip
    list_filter = (("dead_at", admin.EmptyFieldListFilter),)
    list_per_page = 100
    show_full_result_count = True
    lookups = frozenset({"dead_at__isempty"})
    search_fields = ("hostname",)
    ordering = ("-started_at",)
    change_form_template = "jobs/admin/node/change_form.html"
    fields = (
        "id", "status", "hostname", "pid", "beat", "running", "processes", "version", "started", "died", "served",
        "known_tasks",
    )  # fmt: skip

    short_id = column(_("ID"), lambda node: str(node.pk)[:DIGITS])
    processes = column(_("processes"), lambda node: f"{node.pool} {node.concurrency}" if node.pool else NOTHING)
    started = time_column(_("started"), "started_at")
    died = time_column(_("dead since"), "dead_at")
    served = column(_("queues"), lambda node: ", ".join(map(str, node.queues)) or NOTHING)
    known_tasks = column(_("tasks"), lambda node: ", ".join(map(str, node.tasks)) or NOTHING)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return NodeChangeList

    def get_urls(self) -> list[Any]:
        return [self.path("<uuid:key>/tell/", "node_tell", self.tell, posts=True), *super().get_urls()]

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        is_told = context["original"].dead_at is None and may(request, "control_node")
        context["verbs"] = workers.LABELS.items() if is_told else ()
        return super().render_change_form(request, context, *args, **kwargs)

    def tell(self, request: HttpRequest, key: uuid.UUID) -> HttpResponse:
        """Tell the worker to be quiet, to claim again, or to stop, and go back to its page."""
        verb = request.POST.get("verb", "")
        if verb not in workers.LABELS or not may(request, "control_node"):
            raise PermissionDenied
        node = get_object_or_404(self.get_queryset(request), pk=key)
        why = scrub(request.POST.get("why", "").strip(), 1000)
        if workers.tell(key, verb, request.user.get_username(), why):
            self.log_change(request, node, f"{verb} {why}".strip())
            self.message_user(request, gettext("%s was told; it obeys within a second or so.") % node, messages.SUCCESS)
        else:
            self.message_user(request, gettext("%s is dead.") % node, messages.WARNING)
        return HttpResponseRedirect(url_of("node_change", key))

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Node | None:
        node = super().get_object(request, object_id, from_field)
        if node is not None:
            look_at([node])
        return node

    @admin.display(description=_("status"))
    def status(self, node: Any) -> str:
        is_dead = node.dead_at is not None
        states = (
            (is_dead and node.signed_off, "cancelled", gettext("stopped")),
            (is_dead, "failed", gettext("died")),
            (not node.is_alive, "failed", gettext("silent")),
            (node.stopping_at is not None, "cancelled", gettext("stopping")),
            (not node.queues, "cancelled", gettext("quiet")),
            (True, "succeeded", gettext("alive")),
        )
        return next(badge(f"job-{look}", label) for is_so, look, label in states if is_so)

    @admin.display(description=_("last beat"))
    def beat(self, node: Any) -> str:
        return gettext("%(time)s ago") % {"time": duration(node.silence)} if math.isfinite(node.silence) else NOTHING

    @admin.display(description=pgettext_lazy("how many jobs", "running"))
    def running(self, node: Any) -> str:
        html = '<a href="{}?state__exact=running&amp;node={}">{}</a>'
        return format_html(html, url_of("job_changelist"), node.pk, node.running)

    def search(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        return rows.filter(hostname__startswith=term)
