"""The dashboard: is it healthy, what is slow, what failed, what waits; and the workers, each with what it does."""

import datetime
import math
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import ChangeList
from django.core import checks
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.db.models import Count, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.translation import gettext, ngettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from jobs.admin.base import (
    NOTHING,
    ReadOnlyAdmin,
    ago_tag,
    arguments,
    badge,
    column,
    may,
    time_column,
    url_of,
    whether,
)
from jobs.arguments import parse_uuid, scrub
from jobs.calling import progress
from jobs.conf import conf
from jobs.inspection import census, live
from jobs.inspection.census import LIVE, at_least
from jobs.inspection.dashboard import FAILURES, Chart, Dashboard
from jobs.inspection.remarks import INFO, Remark, sentence
from jobs.inspection.times import duration
from jobs.lifecycle import queues
from jobs.maintenance.tally import HOUR
from jobs.models import Job, Node, Overview, Pause, State
from jobs.operations import workers
from jobs.operations.actions import OPERATIONS
from jobs.operations.selection import DIGITS

#: Remarks on what waits in a queue.
QUEUED = ("starving", "growing", "busy", "paused")

#: Remarks of one kind that stand open, and entries of the schedule: the first screen has room for all kinds.
OF_A_KIND, NEXT = 2, 8

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
            self.path("live/", "live", self.live),
            self.path("queue/", "queue_switch", self.switch, posts=True),
            self.path("seen/", "node_seen", self.seen, posts=True),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        board = Dashboard(request.GET.get("span", "hour"), request.GET.get("by", "state"))
        chart, failures, found = board.chart(), board.failures(), board.found
        entries = [each for each in found["schedules"] if each["next_tick"] and may(request, "view_schedule")]
        by_state, faults, said = board.by == "state", checks.run_checks(tags=["jobs"]), progress.of(board.running)
        # One for all rows: Django takes 0.1 ms to find each.
        base = url_of("job_changelist")
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
            worst=next((each.severity for each in board.remarks if each.severity != INFO), "fine"),
            sentence=sentence(board.remarks, _settings(faults)),
            problems=[
                (rows[:OF_A_KIND], rows[OF_A_KIND:])
                for kind, group in groupby(board.remarks, lambda each: (each.severity, each.kind))
                if (rows := [(each, duration(each.since), *_ways(request, each)) for each in group])
            ],
            entries=[(entry, ago_tag(entry["next_tick"])) for entry in entries[:NEXT]],
            later=max(0, len(entries) - NEXT),
            running=[
                (job, duration(job.age.total_seconds()), said.get(job.pk), arguments(job), f"{base}{job.pk}/operate/")
                for job in board.running
            ],
            names={node["id"]: node["hostname"] for node in found["nodes"]},
            may_kill=may(request, "kill_job"),
            kill=OPERATIONS["kill"],
            killing={"operation": "kill"},
            chart=chart,
            bars=_bars(chart, series),
            hours=_hours(chart.begins),
            cuts=[(_place(place + 0.5, chart.begins), count) for place, count in chart.cut.items()],
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
                    *(" · ".join(map(_short, each[name].values())) for name in ("ran", "waited")),
                )
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
            checks=faults,
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

    def live(self, request: HttpRequest) -> HttpResponseBase:
        """Tells a page that something changed. Under WSGI a stream would hold a thread: there pages only poll."""
        if not isinstance(request, ASGIRequest):
            raise Http404
        try:
            since = float(request.GET.get("since", ""))
        except ValueError:
            since = 0.0
        # Nobody between here and the browser collects it: neither a proxy, nor a middleware that compresses.
        told = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no", "Content-Encoding": "identity"}
        return StreamingHttpResponse(live.stream(since), content_type="text/event-stream", headers=told)

    def seen(self, request: HttpRequest) -> HttpResponse:
        """Somebody has seen which workers died."""
        if not may(request, "control_node"):
            raise PermissionDenied
        for node in workers.seen():
            self.log_change(request, node, "seen")
        return HttpResponseRedirect(url_of("dashboard"))

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


def _bars(chart: Chart, series: list[tuple[Any, Any, list[int]]]) -> Iterator[Any]:
    """Number of the bar, what it says, and its parts: look, top and height of each, in jobs."""
    for number, begin in enumerate(chart.begins):
        top, parts, says = chart.top, [], [f"{timezone.localtime(begin):%Y-%m-%d %H:%M}"]
        for look, label, counts in series:
            if count := counts[number]:
                height = min(count, top)
                top -= height
                parts.append((look, top, height))
                says.append(f"{label}: {count}")
        yield number, ", ".join(says), parts


def _place(number: float, begins: list[datetime.datetime]) -> float:
    """In percent of the chart's width."""
    return round(100 * number / len(begins), 2)


def _hours(begins: list[datetime.datetime]) -> Iterator[tuple[float, str]]:
    """Where the axis has a moment, and which: of an hour each tenth minute, else each fourth hour, or each day."""
    step = begins[1] - begins[0]
    for number, begin in enumerate(map(timezone.localtime, begins)):
        if step < HOUR:
            is_round, text = begin.minute % 10 == 0, f"{begin:%H:%M}"
        elif step == HOUR:
            is_round, text = begin.hour % 4 == 0, f"{begin:%H:%M}"
        else:
            is_round, text = begin.hour < 6, date_format(begin, "D j.n.")
        if is_round:
            yield _place(number, begins), text


def _settings(faults: list[Any]) -> list[str]:
    number = len(faults)
    says = ngettext("%(number)s setting to look at", "%(number)s settings to look at", number)
    return [says % {"number": number}] if faults else []


def _ways(request: HttpRequest, remark: Remark) -> tuple[Any, Any]:
    """Where somebody can see it: a label and a URL; and the button that mends it: a label, a URL, fields and a warning.

    None stands for what there is not, or for what this reader may not.
    """
    about, kind = remark.about, remark.kind
    failed = {"state__exact": "failed", "task": about, "since": "1h"}
    query: dict[str, Any] = {
        "copied": {"state__exact": "ready"},
        "overdue": {"state__exact": "scheduled"},
        "unknown_task": {"state__exact": "scheduled", "task": about},
        "failing": failed,
        "failed": failed,
        **{name: {"state__exact": "ready", "queue": about} for name in QUEUED},
    }.get(kind, {})
    link: Any = None
    if query:
        link = gettext("Show them"), f"{url_of('job_changelist')}?{urlencode(query)}"
    elif kind in ("stuck", "batch"):
        link = gettext("Show the job"), url_of("job_change", about)
    elif kind == "dead":
        link = gettext("Show them"), f"{url_of('node_changelist')}?dead_at__isempty=0"
    elif kind in ("limited", "rated"):
        link = gettext("Show them"), url_of("limit_changelist")
    elif kind.startswith("events_"):
        link = gettext("Show them"), f"{url_of('event_changelist')}?{urlencode({'way': about})}"
    elif kind == "standing":
        link = gettext("Show the workers"), f"{url_of('node_changelist')}?dead_at__isempty=1"
    elif kind.startswith("schedule_"):
        link = gettext("Show it"), url_of("schedule_change", quote(about))
    entry = {"_selected_action": about, "index": "0"}
    kill = OPERATIONS["kill"]
    retry = (
        "retry_job",
        _("Retry these"),
        f"{url_of('job_operate')}?{urlencode(query)}",
        {"operation": "retry", "scope": "all"},
        _("All failed jobs of this task that were created in the last hour run again."),
    )
    ways: dict[str, tuple[str, Any, str, dict[str, Any], Any]] = {
        "paused": ("pause_queue", _("Resume"), url_of("queue_switch"), {"verb": "resume", "queue": about}, ""),
        "failing": retry,
        "failed": retry,
        "dead": ("control_node", _("Seen"), url_of("node_seen"), {}, ""),
        "schedule_paused": (
            "operate_schedule", _("Resume"), url_of("schedule_changelist"), {**entry, "action": "resume"}, ""
        ),
        "schedule_missed": (
            "operate_schedule", _("Run now"), url_of("schedule_changelist"), {**entry, "action": "run_now"}, ""
        ),
    }  # fmt: skip
    if kind == "stuck":
        url = url_of("job_operate_one", about)
        ways["stuck"] = ("kill_job", kill.label, url, {"operation": "kill"}, kill.warns)
    permission, *button = ways.get(kind, ("", None))
    return link, button if permission and may(request, permission) else None


def _short(seconds: float | None) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds is not None and seconds < 1 else duration(seconds)


# The workers


def look_at(nodes: Iterable[Any]) -> None:
    """Give each what its row does not say: its silence, and how many jobs it runs."""
    running: dict[Any, Counter[str]] = defaultdict(Counter)
    for alias in conf().DATABASES:
        rows = Job.objects.using(alias).filter(state=State.RUNNING).values_list("node_id", "task")
        for key, task, number in rows.annotate(Count("pk")):
            running[key][task.rpartition(".")[2]] += number
    for node in census.look_at(nodes):
        node.running = running[node.pk]


class NodeChangeList(ChangeList):
    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        look_at(self.result_list)


@admin.register(Node)
class NodeAdmin(ReadOnlyAdmin):
    list_display = (
        "hostname", "status", "running", "beat", "started", "served", "processes", "version", "pid", "short_id", "died",
    )  # fmt: skip
    list_filter = (("dead_at", whether(_("status"), _("not dead"), _("stopped or died"))),)
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
        html = '<a href="{}?state__exact=running&amp;node={}">{} {}</a>'
        named = ", ".join(f"{number} {task}" if number > 1 else task for task, number in node.running.items())
        return format_html(html, url_of("job_changelist"), node.pk, node.running.total(), named)

    def search(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        return rows.filter(hostname__startswith=term) | rows.filter(hostname__endswith=f"@{term}")
