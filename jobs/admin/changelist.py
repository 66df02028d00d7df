"""A list that never counts its table, and whose last page is as fast as the first: a page begins where another ends."""

from __future__ import annotations

import datetime
from typing import Any, ClassVar

from django.conf import settings
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ORDER_VAR, PAGE_VAR, ChangeList
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.db.models import Q, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.utils import timezone

#: In the URL, beside ``after,...`` and ``before,...``: the page with the oldest rows.
LAST = "last"


class UncountedChangeList(ChangeList):
    #: What ``?o=`` may ask for: a label, and the order, which an index has to have; the first is the one without it.
    sorts: ClassVar[dict[str, tuple[Any, tuple[str, ...]]]] = {"": ("", ("-pk",))}

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """Of an index: any other order would sort the whole table."""
        asked = request.GET.get(ORDER_VAR, "")
        return [*self.sorts.get(asked, self.sorts[""])[1]]

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> QuerySet[Any]:
        rows = super().get_queryset(request, *args, **kwargs)
        self.order = [str(name) for name in self.get_ordering(request, rows)]
        # Rows without such a moment have no place in its order.
        return rows.filter(**{f"{name.lstrip('-')}__isnull": False for name in self.order[:-1]})

    def choices(self) -> list[tuple[Any, str, bool]]:
        """Label, link, and whether it is the one that is shown."""
        if len(self.sorts) == 1:
            return []
        now = self.params.get(ORDER_VAR, "")
        return [
            # Not by ``remove``, which takes away whatever begins so: ``parent``.
            (label, self.get_query_string({ORDER_VAR: name or None, PAGE_VAR: None}), name == now)
            for name, (label, _) in self.sorts.items()
        ]

    def get_results(self, request: HttpRequest) -> None:
        size = self.list_per_page
        where = request.GET.get(PAGE_VAR, "")
        way, _, cursor = where.partition(",")
        is_back = way in ("before", LAST)
        rows = self.queryset.reverse() if is_back else self.queryset
        if way in ("after", "before"):
            rows = rows.filter(self._beyond(cursor, is_back))
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
        self.next_page = self._link("after", self.result_list[-1]) if has_older else ""
        self.last_page = self.get_query_string({PAGE_VAR: LAST}) if has_older else ""
        self.previous_page = self._link("before", self.result_list[0]) if has_newer and self.result_list else ""
        self.first_page = self.get_query_string({PAGE_VAR: None}) if has_newer else ""
        # Equal counts keep "N results" out of the search form, and those of the page Django's offer to choose all
        # pages out of the actions. The paginator knows as much as was read, for themes that bring their own templates.
        self.result_count = self.full_result_count = len(self.result_list)
        self.paginator = Paginator(self.queryset, size)
        self.paginator.count = self.result_count
        self.multi_page = has_older or has_newer
        self.show_full_result_count = self.can_show_all = False
        self.show_admin_actions = True

    def _beyond(self, cursor: str, is_back: bool) -> Q:
        """The rows that come after the one of the cursor, or, on the way back, before it."""
        *names, pk = self.order
        than = "lt" if pk.startswith("-") != is_back else "gt"
        texts = cursor.split(",")
        try:
            key = self.opts.pk.to_python(texts[-1])
            moments = [datetime.datetime.fromisoformat(text) for text in texts[:-1]]
            if len(moments) != len(names) or any(timezone.is_aware(at) != settings.USE_TZ for at in moments):
                raise IncorrectLookupParameters
            moments = [at.astimezone(datetime.UTC) if settings.USE_TZ else at for at in moments]
        except (ValueError, OverflowError, ValidationError) as exc:
            raise IncorrectLookupParameters from exc
        if not names:
            return Q((f"pk__{than}", key))
        [name] = [each.lstrip("-") for each in names]
        field: Any = self.opts.get_field(name)
        # What stands in the row, if it is still there: SQLite compares texts, of more or fewer digits.
        stored = self.model._default_manager.filter(pk=key).values(name)
        at = Coalesce(Subquery(stored), Value(moments[0], field))
        # The first condition is the index's; the others decide among rows of one moment.
        return Q((f"{name}__{than}e", at)) & (Q((f"{name}__{than}", at)) | Q((f"pk__{than}", key)))

    def _link(self, way: str, row: Any) -> str:
        cursor = [*(getattr(row, name.lstrip("-")).isoformat() for name in self.order[:-1]), str(row.pk)]
        return self.get_query_string({PAGE_VAR: ",".join([way, *cursor])})
