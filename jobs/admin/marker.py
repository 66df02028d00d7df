"""The markers: what was done once, by which job, and until when that is remembered."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from jobs.admin.changelist import UncountedChangeList
from jobs.admin.readonly import NOTHING, ReadOnlyAdmin, moment
from jobs.admin.related import link, link_in_list
from jobs.arguments import parse_uuid
from jobs.models import Marker


@admin.register(Marker)
class MarkerAdmin(ReadOnlyAdmin):
    """The delete permission allows to forget one: then the work is done again, if anybody asks for it."""

    list_display = ("key", "kind", "job_link", "created", "expires")
    list_filter = ("kind",)
    lookups = frozenset({"kind__exact"})
    list_per_page = 50
    search_fields = ("key", "job")
    search_help_text = _("The beginning of a key, or the ID of a job.")
    show_full_result_count = False
    actions = ()
    change_list_template = "admin/jobs/job/change_list.html"
    fieldsets = (
        (
            None,
            {
                "fields": ("key", "kind", "linked_job", "created", "expires"),
                "description": _(
                    "As long as this marker is there, nobody does this work again: other jobs of the key replay the "
                    "result. If it is deleted, the next one that asks does the work."
                ),
            },
        ),
    )
    readonly_fields = ("key", "kind", "linked_job", "created", "expires")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(admin.ModelAdmin.has_delete_permission(self, request, obj))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[UncountedChangeList]:
        return UncountedChangeList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Marker], search_term: str
    ) -> tuple[QuerySet[Marker], bool]:
        """By an index each: nothing that starts with a wildcard."""
        term = search_term.strip()
        if (job := parse_uuid(term)) is not None:
            queryset = queryset.filter(job=job)
        elif term:
            queryset = queryset.filter(key__startswith=term)
        return queryset, False

    @admin.display(description=_("job"))
    def job_link(self, row: Marker) -> SafeString | str:
        return NOTHING if row.job is None else link_in_list(row.job)

    @admin.display(description=_("job"))
    def linked_job(self, row: Marker) -> str:
        return link(row, row.job)

    @admin.display(description=_("created"))
    def created(self, row: Marker) -> str:
        return moment(row.created_at)

    @admin.display(description=_("expires"))
    def expires(self, row: Marker) -> str:
        return moment(row.expires_at)
