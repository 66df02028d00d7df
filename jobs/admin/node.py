"""The workers: who is alive, and since when."""

from __future__ import annotations

from django.contrib import admin
from django.utils.translation import gettext_lazy as _

from jobs.admin.readonly import ReadOnlyAdmin, moment
from jobs.models import Node


@admin.register(Node)
class NodeAdmin(ReadOnlyAdmin):
    list_display = ("short_id", "is_alive", "hostname", "pid", "started", "died", "queue_count")
    list_filter = (("dead_at", admin.EmptyFieldListFilter),)
    search_fields = ("hostname__startswith",)
    ordering = ("-started_at",)
    fields = ("id", "is_alive", "hostname", "pid", "started", "died", "signed_off", "queues", "tasks")
    readonly_fields = fields

    @admin.display(description=_("ID"))
    def short_id(self, node: Node) -> str:
        return str(node.pk)[:8]

    @admin.display(description=_("alive"), boolean=True)
    def is_alive(self, node: Node) -> bool:
        return node.dead_at is None

    @admin.display(description=_("started"))
    def started(self, node: Node) -> str:
        return moment(node.started_at)

    @admin.display(description=_("dead since"))
    def died(self, node: Node) -> str:
        return moment(node.dead_at)

    @admin.display(description=_("queues"))
    def queue_count(self, node: Node) -> int:
        return len(node.queues)
