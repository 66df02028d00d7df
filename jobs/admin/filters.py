"""What the list of jobs can be narrowed by, in words: the same as on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib import messages
from django.contrib.admin import ChoicesFieldListFilter, ListFilter, SimpleListFilter
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from jobs.conf import conf
from jobs.fields import created_since
from jobs.models import Job
from jobs.selection import FIELDS, Selection, Unreadable, moment

LABELS = {
    "task": (_("Task"), "shop.tasks.*"),
    "queue": (_("Queue"), "celery"),
    "node": (_("Worker (its ID or host)"), "web1"),
    "key": (_("Key (unique or marker)"), "welcome:42"),
    "parent": (_("Called by the job"), "6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11"),
    "error": (_("Error"), "SMTPConnectError"),
    "since": (_("Created since"), "2h"),
    "until": (_("Created before"), "2026-11-21 14:30"),
    "contains": (_("Arguments contain"), "ada@example.com"),
}


class StateFilter(ChoicesFieldListFilter):
    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> Any:
        asked: Any = self.used_parameters.get(self.lookup_kwarg, [])
        return Selection(states=asked).narrow(queryset)


class Created(SimpleListFilter):
    title = _("created")
    parameter_name = "created"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("1h", _("last hour")), ("1d", _("last day")), ("1w", _("last week"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        age = self.value()
        return queryset.filter(created_since(moment(age))) if age in dict(self.lookup_choices) else queryset


class Narrow(ListFilter):
    """One form for all of them, where Django has a list of links for each."""

    title = _("what they have in common")
    template = "admin/jobs/job/filter.html"

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: type[Job], model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        # Who may not see an argument may not find out by asking for it either.
        self.names = [name for name in FIELDS if name != "contains" or conf().REDACT is None]
        self.asked: dict[str, str] = {name: params.pop(name)[-1] for name in self.names if name in params}

    def expected_parameters(self) -> list[str | None]:
        return [*self.names]

    def has_output(self) -> bool:
        return True

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        try:
            return Selection.of(self.asked).narrow(queryset)
        except Unreadable as exc:
            messages.error(request, f"{LABELS[exc.field][0]}: {exc.why}")
            return queryset.none()

    def choices(self, changelist: Any) -> Iterator[dict[str, Any]]:
        yield {
            "others": [(name, value) for name, value in changelist.params.items() if name not in self.names],
            "fields": [
                {
                    "name": name,
                    "label": LABELS[name][0],
                    "example": LABELS[name][1],
                    "value": self.asked.get(name, ""),
                }
                for name in self.names
            ],
        }
