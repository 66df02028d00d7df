"""What the operator's room shows of limits."""

from collections.abc import Iterator
from typing import Any

from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from jobs.contrib.inspection.times import duration
from jobs.contrib.limits import usage
from jobs.contrib.operator.problem import Kind, Link, Problem


def _kind(many: Any) -> Kind:
    return Kind(
        severity="info", many=many, is_fault=False, place=lambda _about: Link(_("Show them"), "limit_changelist")
    )


KINDS = {
    "limited": _kind(ngettext_lazy("%(number)s limit is reached", "%(number)s limits are reached", "number")),
    "rated": _kind(ngettext_lazy("%(number)s rate is reached", "%(number)s rates are reached", "number")),
}


def status(found: dict[str, Any]) -> dict[str, Any]:
    return {"limits": usage.usage()}


def problems(found: dict[str, Any]) -> Iterator[Problem]:
    """The limits that are reached: nothing is broken, but a person may wonder why jobs wait."""
    for row in found["limits"]:
        if row["reached"] == "concurrency":
            says = gettext(
                "%(name)s: limit reached: %(running)s run, of %(concurrency)s at once; others wait for a slot"
            )
            yield Problem("limited", says % row, gettext("Jobs wait for a slot, as it was wanted."))
        elif row["reached"]:
            says = gettext("%(name)s: rate reached: %(rate)s; the next job starts in %(time)s")
            means = gettext("Jobs wait for their turn, as it was wanted.")
            yield Problem("rated", says % {**row, "time": duration(row["next_in"])}, means)
