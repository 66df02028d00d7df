"""What of the events takes part in the core."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from jobs.extensions import Extension, Gauge, Kind


def _place(way: Any) -> tuple[Any, str]:
    from jobs.admin.html import url_of

    return _("Show them"), url_of("event_changelist", way=way)


class Events(Extension):
    def related(self, request: Any, view: Any) -> Iterator[tuple[Any, str]]:
        from jobs.events import admin

        return admin.related(request, view)

    def link(self, using: str, key: Any) -> str:
        from jobs.events import admin

        return admin.link(using, key)

    kinds = {
        "events_waiting": Kind(
            severity="error",
            many=ngettext_lazy("%(number)s event does not get on", "%(number)s events do not get on", "number"),
            place=_place,
        ),
        "events_problem": Kind(
            severity="warning",
            many=ngettext_lazy("%(number)s event has a problem", "%(number)s events have problems", "number"),
            place=_place,
        ),
    }

    def problems(self, found: dict[str, Any]) -> Iterator[Any]:
        from jobs.events import stages

        return stages.problems()

    def metrics(self) -> Iterator[Gauge]:
        from jobs.events import stages

        return stages.metrics()
