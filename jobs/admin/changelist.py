"""A list that never counts its table, and whose last page is as fast as the first: a page begins where another ends."""

from __future__ import annotations

import datetime
from typing import Any

from django.conf import settings
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import PAGE_VAR, ChangeList
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone

#: In the URL, beside ``after,...`` and ``before,...``: the page with the oldest rows.
LAST = "last"


class UncountedChangeList(ChangeList):
    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """The index's order, newest first, whatever ``?o=`` asks for: any other order sorts the whole table."""
        return [*self.model_admin.get_ordering(request), "-pk"]

    def get_results(self, request: HttpRequest) -> None:
        size = self.list_per_page
        where = request.GET.get(PAGE_VAR, "")
        way, _, cursor = where.partition(",")
        is_back = way in ("before", LAST)
        rows = self.queryset.reverse() if is_back else self.queryset
        if way in ("after", "before"):
            rows = rows.filter(self._beyond(request, cursor, is_back))
        elif where not in ("", LAST):
            raise IncorrectLookupParameters
        page = list(rows[: size + 1])
        is_more = len(page) > size
        if way == "before" and not is_more:
            # The first one, which newer rows may have shifted.
            way, is_back, page = "", False, list(self.queryset[: size + 1])
            is_more = len(page) > size
        self.result_list = page[:size][::-1] if is_back else page[:size]
        has_older = bool(self.result_list) and (way == "before" or (is_more and not is_back))
        has_newer = way == "after" or (is_back and is_more)
        self.next_page = self._link(request, "after", self.result_list[-1]) if has_older else ""
        self.last_page = self.get_query_string({PAGE_VAR: LAST}) if has_older else ""
        self.previous_page = (
            self._link(request, "before", self.result_list[0]) if has_newer and self.result_list else ""
        )
        self.first_page = self.get_query_string(remove=[PAGE_VAR]) if has_newer else ""
        # Equal counts keep "N results" out of the search form. The paginator knows as much as was read, for
        # themes that bring their own templates.
        self.result_count = self.full_result_count = len(self.result_list)
        self.paginator = Paginator(self.queryset, size)
        self.paginator.count = self.result_count
        self.multi_page = has_older or has_newer
        self.show_full_result_count = self.can_show_all = False
        self.show_admin_actions = True

    def _fields(self, request: HttpRequest) -> list[str]:
        return [str(name).lstrip("-") for name in self.model_admin.get_ordering(request)]

    def _beyond(self, request: HttpRequest, cursor: str, is_back: bool) -> Q:
        """The rows that come after the one of the cursor, or, on the way back, before it."""
        than = "gt" if is_back else "lt"
        texts = cursor.split(",")
        names = self._fields(request)
        try:
            key = self.opts.pk.to_python(texts[-1])
            moments = [datetime.datetime.fromisoformat(text) for text in texts[:-1]]
        except (ValueError, ValidationError) as exc:
            raise IncorrectLookupParameters from exc
        if len(moments) != len(names) or any(timezone.is_aware(at) != settings.USE_TZ for at in moments):
            raise IncorrectLookupParameters
        if not names:
            return Q((f"pk__{than}", key))
        [name], [at] = names, moments
        # The first condition is the index's; the others decide among rows of one moment.
        return Q((f"{name}__{than}e", at)) & (Q((f"{name}__{than}", at)) | Q((f"pk__{than}", key)))

    def _link(self, request: HttpRequest, way: str, row: Any) -> str:
        cursor = [*(getattr(row, name).isoformat() for name in self._fields(request)), str(row.pk)]
        return self.get_query_string({PAGE_VAR: ",".join([way, *cursor])})
