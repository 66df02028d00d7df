"""What all pages share: they are for reading, and show times to the second."""

from __future__ import annotations

import datetime
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html


class ReadOnlyAdmin(admin.ModelAdmin):
    """The view permission suffices, and nobody edits a field."""

    #: Of the URL. Django's own would find out any value of any field, also of those that are redacted.
    lookups: frozenset[str] = frozenset()

    actions: Any = None
    list_max_show_all = 0
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest) -> bool:
        names = {field.name for field in self.opts.get_fields()}
        return lookup in self.lookups or lookup.partition("__")[0] not in names

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


#: What stands for a value that is not there.
NOTHING = "-"


def moment(value: datetime.datetime | None) -> str:
    """In the reader's time zone, to the second, and exactly on hover; Django's own format leaves the seconds out."""
    if value is None:
        return NOTHING
    local = timezone.localtime(value) if timezone.is_aware(value) else value
    date, time = f"{local:%Y-%m-%d %H:%M:%S}".split()
    exact = local.isoformat()
    return format_html(
        '<time datetime="{}" title="{}"><span>{}</span> <span>{}</span></time>', exact, exact, date, time
    )
