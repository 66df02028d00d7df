"""The workers: each with its status and what it runs, and buttons to make it quiet or stop it."""

import math
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from jobs.conf import conf
from jobs.contrib.inspection import counts
from jobs.contrib.inspection.times import duration
from jobs.contrib.operations.selection import DIGITS
from jobs.contrib.operator import workers
from jobs.contrib.pages import html
from jobs.contrib.pages.base import CountedChangeList, ReadOnlyAdmin, buttons, may, page, whether, why_of
from jobs.contrib.pages.html import column, time_column, url_of
from jobs.models import Job, Node, State


def _status(node: Any) -> str:
    """The status of a worker, as a badge in the colour of a job's state."""
    if node.dead_at is not None:
        look, label = ("cancelled", gettext("stopped")) if node.signed_off else ("failed", gettext("died"))
    elif not node.is_alive:
        look, label = "failed", gettext("silent")
    elif node.stopping_at is not None:
        look, label = "cancelled", gettext("stopping")
    elif not node.queues:
        look, label = "cancelled", gettext("quiet")
    else:
        look, label = "succeeded", gettext("alive")
    return html.badge(f"job-{look}", label)


def _beat(node: Any) -> str:
    return gettext("%(time)s ago") % {"time": duration(node.silence)} if math.isfinite(node.silence) else html.NOTHING


def _running(node: Any) -> str:
    named = ", ".join(f"{number} {task}" if number > 1 else task for task, number in node.running.items())
    return html.link(f"{node.running.total()} {named}", "job_changelist", state__exact="running", node=node.pk)


@admin.register(Node)
class NodeAdmin(ReadOnlyAdmin):
    list_display = (
        "hostname", "status", "running", "beat", "started", "served", "processes", "version", "pid", "short_id", "died",
    )  # fmt: skip
    list_filter = (("dead_at", whether(_("status"), _("not dead"), _("stopped or died"))),)
    list_per_page = 100
    show_full_result_count = True
    changelist = CountedChangeList
    lookups = frozenset({"dead_at__isempty"})
    search_fields = ("hostname",)
    ordering = ("-started_at",)
    fields = (
        "id", "status", "hostname", "pid", "beat", "running", "processes", "version", "started", "died", "served",
        "known_tasks",
    )  # fmt: skip

    short_id = column(_("ID"), lambda node: str(node.pk)[:DIGITS])
    status = column(_("status"), _status)
    beat = column(_("last beat"), _beat)
    running = column(pgettext_lazy("how many jobs", "running"), _running)
    processes = column(_("processes"), lambda node: f"{node.pool} {node.concurrency}" if node.pool else html.NOTHING)
    started = time_column(_("started"), "started_at")
    died = time_column(_("dead since"), "dead_at")
    served = column(_("queues"), lambda node: ", ".join(map(str, node.queues)) or html.NOTHING)
    known_tasks = column(_("tasks"), lambda node: ", ".join(map(str, node.tasks)) or html.NOTHING)

    def look_at(self, rows: Iterable[Any]) -> None:
        """Add how long each was silent, and which jobs it runs."""
        running: dict[Any, Counter[str]] = defaultdict(Counter)
        for alias in conf().DATABASES:
            jobs = Job.objects.using(alias).filter(state=State.RUNNING).values_list("node_id", "task")
            for key, task, number in jobs.annotate(Count("pk")):
                running[key][task.rpartition(".")[2]] += number
        for node in counts.look_at(rows):
            node.running = running[node.pk]

    def search(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        return rows.filter(hostname__startswith=term) | rows.filter(hostname__endswith=f"@{term}")

    def about(self, request: HttpRequest, row: Node) -> dict[str, Any]:
        if row.dead_at is not None or not may(request, "control_node"):
            return {}
        return {"buttons": buttons(url_of("node_tell", row.pk), "verb", workers.LABELS.items())}

    @page("<uuid:key>/tell/", "node_tell", "control_node")
    def tell(self, request: HttpRequest, key: uuid.UUID) -> HttpResponse:
        """Tell the worker to be quiet, to claim again, or to stop, and go back to its page."""
        verb, why = request.POST.get("verb", ""), why_of(request)
        if verb not in workers.LABELS:
            raise PermissionDenied
        node = get_object_or_404(self.get_queryset(request), pk=key)
        if workers.tell(key, verb, request.user.get_username(), why):
            self.log_change(request, node, f"{verb} {why}".strip())
            messages.success(request, gettext("%s was told; it obeys within a second or so.") % node)
        else:
            messages.warning(request, gettext("%s is dead.") % node)
        return HttpResponseRedirect(url_of("node_change", key))
