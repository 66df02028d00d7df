"""What the operator's room shows of events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from jobs.contrib.event_operator import stages
from jobs.contrib.operator.problem import Kind, Link

metrics = stages.metrics


def _place(way: Any) -> Link:
    return Link(_("Show them"), "event_changelist", query={"way": way})


KINDS = {
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


def problems(found: dict[str, Any]) -> Iterator[Any]:
    return stages.problems()
