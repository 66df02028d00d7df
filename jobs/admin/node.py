"""The workers: who is alive, what each does, and since when."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from jobs import census
from jobs.admin.readonly import NOTHING, ReadOnlyAdmin, moment
from jobs.census import Worker
from jobs.models import Job, Node
from jobs.times import duration


def look_at(nodes: Iterable[Any]) -> None:
    """Give each what its row does not say: its silence, and how many jobs it runs."""
    running = census.running_by_node()
    silence = census.silence()
    for node in nodes:
        node.worker = Worker(node, silence.get(node.pk, math.inf))
        node.running = running[node.pk]


class NodeChangeList(ChangeList):
    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        look_at(self.result_list)


@admin.register(Node)
class NodeAdmin(ReadOnlyAdmin):
    list_display = (
        "short_id",
        "status",
        "hostname",
        "pid",
        "beat",
        "running",
        "processes",
        "served",
        "started",
        "died",
    )
    list_filter = (("dead_at", admin.EmptyFieldListFilter),)
    lookups = frozenset({"dead_at__isempty"})
    search_fields = ("hostname__startswith",)
    ordering = ("-started_at",)
    change_list_template = "admin/jobs/node/change_list.html"
    change_form_template = "admin/jobs/effect/change_form.html"
    fields = (
        "id",
        "status",
        "hostname",
        "pid",
        "beat",
        "running",
        "processes",
        "version",
        "started",
        "died",
        "served",
        "known_tasks",
    )
    readonly_fields = fields

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[NodeChangeList]:
        return NodeChangeList

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Node | None:
        node = super().get_object(request, object_id, from_field)
        if node is not None:
            look_at([node])
        return node

    @admin.display(description=_("ID"))
    def short_id(self, node: Node) -> str:
        return str(node.pk)[:8]

    @admin.display(description=_("status"))
    def status(self, node: Any) -> SafeString:
        if node.dead_at is not None:
            state, label = ("cancelled", gettext("stopped")) if node.signed_off else ("failed", gettext("died"))
        elif not node.worker.is_alive:
            state, label = "failed", gettext("silent")
        elif node.stopping_at is not None:
            state, label = "cancelled", gettext("stopping")
        elif not node.queues:
            state, label = "cancelled", gettext("quiet")
        else:
            state, label = "succeeded", gettext("alive")
        return format_html('<span class="job-state job-{}">{}</span>', state, label)

    @admin.display(description=_("last beat"))
    def beat(self, node: Any) -> str:
        silence = node.worker.silence
        return gettext("%(time)s ago") % {"time": duration(silence)} if math.isfinite(silence) else NOTHING

    @admin.display(description=pgettext_lazy("how many jobs", "running"))
    def running(self, node: Any) -> SafeString:
        url = reverse(f"admin:{Job._meta.app_label}_job_changelist")
        return format_html('<a href="{}?state__exact=running&amp;node={}">{}</a>', url, node.pk, node.running)

    @admin.display(description=_("processes"))
    def processes(self, node: Node) -> str:
        return f"{node.pool} {node.concurrency}" if node.pool else NOTHING

    @admin.display(description=_("started"))
    def started(self, node: Node) -> str:
        return moment(node.started_at)

    @admin.display(description=_("dead since"))
    def died(self, node: Node) -> str:
        return moment(node.dead_at)

    @admin.display(description=_("queues"))
    def served(self, node: Node) -> str:
        return ", ".join(map(str, node.queues)) or NOTHING

    @admin.display(description=_("tasks"))
    def known_tasks(self, node: Node) -> str:
        return ", ".join(map(str, node.tasks)) or NOTHING
