"""The markers: what was done once, by which job, and until when that is remembered."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.utils.translation import gettext_lazy as _

from jobs.admin.base import ReadOnlyAdmin, column, link, link_in_list, time_column
from jobs.arguments import parse_uuid
from jobs.models import Marker

EXPLAINED = _(
    "As long as this marker is there, nobody does this work again: other jobs of the key replay the "
    "result. If it is deleted, the next one that asks does the work."
)


@admin.register(Marker)
class MarkerAdmin(ReadOnlyAdmin):
    """The delete permission allows to forget one: then the work is done again, if anybody asks for it."""

    list_display = ("key", "kind", "job_link", "created", "expires")
    list_filter = ("kind",)
    lookups = frozenset({"kind__exact"})
    search_fields = ("key", "job")
    search_help_text = _("The beginning of a key, or the ID of a job.")
    actions = ()
    change_form_template = None
    fieldsets = ((None, {"fields": ("key", "kind", "linked_job", "created", "expires"), "description": EXPLAINED}),)
    has_delete_permission = admin.ModelAdmin.has_delete_permission

    job_link = column(_("job"), lambda row: link_in_list(row.job))
    linked_job = column(_("job"), lambda row: link(row, row.job))
    created = time_column(_("created"), "created_at")
    expires = time_column(_("expires"), "expires_at")

    def search(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        job = parse_uuid(term)
        return rows.filter(key__startswith=term) if job is None else rows.filter(job=job)
