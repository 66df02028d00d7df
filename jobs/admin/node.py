"""The workers: who is alive, what each does, and since when."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from jobs import census
from jobs.admin.base import NOTHING, ReadOnlyAdmin, badge, column, time_column, url_of
from jobs.models import Node
from jobs.selection import SHOWN as DIGITS
from jobs.times import duration


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

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Node | None:
        node = super().get_object(request, object_id, from_field)
        if node is not None:
            look_at([node])
        return node

    @admin.display(description=_("status"))
    def status(self, node: Any) -> SafeString:
        if node.dead_at is not None:
            return (
                badge("job-cancelled", gettext("stopped")) if node.signed_off else badge("job-failed", gettext("died"))
            )
        if not node.is_alive:
            return badge("job-failed", gettext("silent"))
        if node.stopping_at is not None:
            return badge("job-cancelled", gettext("stopping"))
        if not node.queues:
            return badge("job-cancelled", gettext("quiet"))
        return badge("job-succeeded", gettext("alive"))

    @admin.display(description=_("last beat"))
    def beat(self, node: Any) -> str:
        return gettext("%(time)s ago") % {"time": duration(node.silence)} if math.isfinite(node.silence) else NOTHING

    @admin.display(description=pgettext_lazy("how many jobs", "running"))
    def running(self, node: Any) -> SafeString:
        html = '<a href="{}?state__exact=running&amp;node={}">{}</a>'
        return format_html(html, url_of("job_changelist"), node.pk, node.running)

    def search(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        return rows.filter(hostname__startswith=term)
