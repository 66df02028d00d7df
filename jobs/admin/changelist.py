"""A list that never counts its table: it reads one row more than a page has, and so knows of the next."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import PAGE_VAR, ChangeList
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest

#: The last page that may be asked for: the database walks over all rows before it. Older jobs are found
#: by a filter or by search.
LAST_PAGE = 1000


class UncountedChangeList(ChangeList):
    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """The index's order, whatever ``?o=`` asks for: any other order sorts the whole table."""
        return [*self.model_admin.get_ordering(request), "-pk"]

    def get_results(self, request: HttpRequest) -> None:
        size = self.list_per_page
        first = (self.page_num - 1) * size
        if not 1 <= self.page_num <= LAST_PAGE:
            raise IncorrectLookupParameters
        rows = list(self.queryset[first : first + size + 1])
        if not rows and self.page_num > 1:
            raise IncorrectLookupParameters
        self.result_list = rows[:size]
        has_next = len(rows) > size and self.page_num < LAST_PAGE
        self.next_page = self.get_query_string({PAGE_VAR: self.page_num + 1}) if has_next else ""
        self.previous_page = self.get_query_string({PAGE_VAR: self.page_num - 1}) if self.page_num > 1 else ""
        # Equal counts keep "N results" out of the search form, and those of the page Django's offer to choose all
        # pages out of the actions. The paginator knows as much as was read, for themes that bring their own templates.
        self.result_count = self.full_result_count = len(self.result_list)
        self.paginator = Paginator(self.queryset, size)
        self.paginator.count = first + len(rows)
        self.multi_page = has_next or self.page_num > 1
        self.show_full_result_count = self.can_show_all = False
        self.show_admin_actions = True
