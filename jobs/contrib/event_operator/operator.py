"""What the operator's room shows of events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext, ngettext_lazy

from jobs.contrib.event_operator import stages
from jobs.contrib.inspection.counts import MOST, at_least, late_after
from jobs.contrib.inspection.times import duration
from jobs.contrib.operator.problem import Kind, Link, Problem

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


#: What the events that do not get on wait for.
_MEANS = {
    "unrelayed": _("Every worker hands events on: none is alive, or the database is very slow."),
    "unsent": _("The broker cannot be reached, or no worker of this service is alive. Nothing is lost."),
    "parked": _("An earlier event of the same service and name has not arrived."),
    "problem": _("They are kept: the page of each says why nobody handled it."),
}


def problems(found: dict[str, Any]) -> Iterator[Problem]:
    """The events that do not get on: one problem of each kind, for all databases."""
    for name, each in stages.summed().items():
        number, since = each.number, each.seconds
        if not number or (name != "problem" and since <= late_after()):
            continue
        texts = {
            "unrelayed": ngettext(
                "%(number)s event waits to be handed on, for %(time)s",
                "%(number)s events wait to be handed on, the oldest for %(time)s",
                number,
            ),
            "unsent": ngettext(
                "%(number)s event waits to be published, for %(time)s",
                "%(number)s events wait to be published, the oldest for %(time)s",
                number,
            ),
            "parked": ngettext(
                "%(number)s received event waits for an earlier one, for %(time)s",
                "%(number)s received events wait for earlier ones, the oldest for %(time)s",
                number,
            ),
            "problem": ngettext("%(number)s event has a problem", "%(number)s events have problems", number),
        }
        says = texts[name] % {"number": at_least(number, number >= MOST), "time": duration(since)}
        kind = "events_problem" if name == "problem" else "events_waiting"
        yield Problem(kind, says, str(_MEANS[name]), about=name, since=since, number=number)
