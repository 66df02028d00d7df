"""Saved filters are shown beside the list of jobs, with a form that saves the active filter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlencode

from django.contrib import admin, messages
from django.contrib.admin.models import ADDITION, DELETION, LogEntry
from django.contrib.admin.views.main import PAGE_VAR
from django.db import transaction
from django.db.models import Case, Q, QuerySet, When
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.middleware.csrf import get_token
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs.contrib.inspection.view import database_of
from jobs.contrib.pages.base import ReadOnlyAdmin, may, page
from jobs.contrib.pages.html import url_of
from jobs.contrib.saved_filters.models import SavedFilter
from jobs.models import Job
from jobs.models.values import scrub

#: How many filters of a person are shown, and how many that other people share.
MOST = 50


def _plain(query: str) -> str:
    """The query without its page number, always in the same order."""
    return urlencode(sorted((name, value) for name, value in parse_qsl(query) if name not in (PAGE_VAR, "e")))


def _seen(user: str) -> QuerySet[SavedFilter]:
    return SavedFilter.objects.filter(Q(owner=user) | Q(is_shared=True))


class Saved(admin.ListFilter):
    title = _("saved filters")
    template = "jobs_saved_filters/filter.html"

    def __init__(self, request: HttpRequest, *args: Any) -> None:
        super().__init__(request, *args)
        self.user = request.user.get_username()
        self.query, self.token = _plain(request.GET.urlencode()), get_token(request)
        self.length = SavedFilter._meta.get_field("name").max_length

    def has_output(self) -> bool:
        return True

    def expected_parameters(self) -> list[str | None]:
        return []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset

    def choices(self, changelist: Any) -> Iterator[Any]:
        self.save_url = url_of("savedfilter_save")
        # The user's own come first: what many others share must not push them out.
        others = Case(When(owner=self.user, then=0), default=1)
        for row in _seen(self.user).order_by(others, "name", "pk")[: 2 * MOST]:
            is_own = row.owner == self.user
            yield {
                "display": row.name,
                "query_string": f"?{row.query}",
                "selected": row.query == self.query,
                "owner": "" if is_own else row.owner,
                "delete_url": url_of("savedfilter_drop", row.pk) if is_own else "",
            }


#: The operator's room has a list of its own.
_list: Any = type(admin.site.get_model_admin(Job))
_list.list_filter = (*_list.list_filter, Saved)


@admin.register(SavedFilter)
class SavedFilterAdmin(ReadOnlyAdmin):
    """It has no list of its own: only the URLs that the form and the buttons beside the list of jobs post to."""

    def has_module_permission(self, request: HttpRequest) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, "view_job")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return _seen(request.user.get_username())

    @page("save/", "savedfilter_save")
    def save(self, request: HttpRequest) -> HttpResponse:
        """Save the filter under a name; it replaces the user's filter of that name."""
        name, query = scrub(request.POST.get("name", "").strip(), 100), _plain(request.POST.get("query", ""))
        owner = request.user.get_username()
        if not name or not query or len(query) > 2000:
            messages.error(request, gettext("Nothing was saved: choose a filter, and give it a name."))
        elif SavedFilter.objects.filter(owner=owner).exclude(name=name).count() >= MOST:
            says = gettext("Nothing was saved: you have %(number)s filters. Delete one that you do not need.")
            messages.error(request, says % {"number": MOST})
        else:
            said = {"query": query, "is_shared": "is_shared" in request.POST}
            with transaction.atomic(using=database_of(SavedFilter)):
                row, _is_new = SavedFilter.objects.update_or_create(owner=owner, name=name, defaults=said)
                self._log(request, row, ADDITION)
            messages.success(request, gettext("Saved as “%(name)s”.") % {"name": name})
        return HttpResponseRedirect(f"{url_of('job_changelist')}?{query}")

    @page("<int:key>/drop/", "savedfilter_drop")
    def drop(self, request: HttpRequest, key: int) -> HttpResponse:
        """Delete one of the user's own filters."""
        row = get_object_or_404(SavedFilter, pk=key, owner=request.user.get_username())
        with transaction.atomic(using=database_of(SavedFilter)):
            self._log(request, row, DELETION)
            row.delete()
        messages.success(request, gettext("Deleted the filter “%(name)s”.") % {"name": row.name})
        return HttpResponseRedirect(f"{url_of('job_changelist')}?{_plain(request.POST.get('query', ''))}")

    def _log(self, request: HttpRequest, row: SavedFilter, flag: int) -> None:
        # For the log: stored texts are in English.
        said = f"{'Deleted' if flag == DELETION else 'Saved'} the filter {row.query}"
        user: Any = request.user.pk
        LogEntry.objects.log_actions(user, [row], flag, change_message=said, single_object=True)
