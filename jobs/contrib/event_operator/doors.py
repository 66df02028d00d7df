"""The part of the events that people see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from jobs.doors import Extension
from jobs.inspection.problems import Kind, Link


def _place(way: Any) -> Link:
    return Link(_("Show them"), "event_changelist", query={"way": way})


class EventOperator(Extension):
    kinds = {
        "events_waiting": Kind(
            severity="error",
            many=ngettext_lazy("%(number)s event does not get on", "%(number)s events do not get on", "number"),
            before="dead",
            place=_place,
        ),
        "events_problem": Kind(
            severity="warning",
            many=ngettext_lazy("%(number)s event has a problem", "%(number)s events have problems", "number"),
            before="dead",
            place=_place,
        ),
    }

    def problems(self, found: dict[str, Any]) -> Iterator[Any]:
        from jobs.contrib.event_operator import stages

        return stages.problems()

    def metrics(self) -> Iterator[tuple[str, str, list[str], Any]]:
        from jobs.contrib.event_operator import stages

        return stages.metrics()

    def parts(self, page: str, request: Any, about: Any) -> Mapping[str, str]:
        from jobs.contrib.event_operator import admin

        return admin.job_page(request, about) if page == "job" else {}

    def other(self, what: Any) -> Any:
        from jobs.contrib.event_operator import stages

        return stages.other(what)

    def waits(self, view: Any) -> Iterator[Any]:
        from jobs.contrib.event_operator import stages

        return stages.reasons(view)
