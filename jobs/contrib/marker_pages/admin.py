"""The admin's pages of the markers, which say what was done once."""

from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from jobs.contrib.inspection.view import SHOWN, View
from jobs.contrib.pages import html
from jobs.contrib.pages.base import ReadOnlyAdmin, by_key, may, template_of
from jobs.contrib.pages.html import column, time_column
from jobs.contrib.redaction.display import veil
from jobs.models import Marker
from jobs.models.values import parse_uuid

EXPLAINED = _(
    "As long as this marker is there, this work is not done again: other jobs of the key replay the "
    "result. If it is deleted, the next job or block that asks does the work."
)


@admin.register(Marker)
class MarkerAdmin(ReadOnlyAdmin):
    """A deleted marker makes the next job of its key do the work again: it takes the permission to delete."""

    list_display = ("key", "kind", "job_link", "created", "expires")
    list_filter = ("kind",)
    lookups = frozenset({"kind__exact"})
    search_fields = ("key", "job")
    search_help_text = _(
        "A marker says that work was done, so that it is not done again. Search: the beginning of a key, or the ID of "
        "a job."
    )
    actions = ()
    fieldsets = ((None, {"fields": ("key", "kind", "linked_job", "created", "expires"), "description": EXPLAINED}),)
    has_delete_permission = admin.ModelAdmin.has_delete_permission

    job_link = column(_("job"), lambda row: html.short_link(row.job))
    linked_job = column(_("job"), lambda row: html.link_to(row, row.job))
    created = time_column(_("created"), "created_at")
    expires = time_column(_("expires"), "expires_at")

    def search(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        job = parse_uuid(term)
        return by_key(rows, term) if job is None else rows.filter(job=job)

    # Django's delete action reads the chosen rows itself, for its question and for the log: hide values there, too.

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        return super().get_deleted_objects(self._veiled(objs), request)

    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        return super().log_deletions(request, self._veiled(queryset))

    def _veiled(self, rows: Any) -> Any:
        found = list(rows)
        self.look_at(found)
        return found


def job_page(request: HttpRequest, view: View) -> dict[str, str]:
    """The markers that a job left, and the one that its success would leave."""
    if not may(request, "view_marker"):
        return {}
    own = Q(job=view.job.pk)
    if view.job.marker_key is not None:
        own |= Q(key=view.job.marker_key, kind=Marker.Kind.TASK)
    found = list(Marker.objects.using(view.using).filter(own).order_by("pk")[:SHOWN])
    veil(found)
    words = {"markers": [(row, html.link(row.key, "marker_change", row.pk)) for row in found], "job": view.job}
    return {"related": template_of("markers.html", __file__).render(words, request)}
