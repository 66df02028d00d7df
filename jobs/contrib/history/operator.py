"""What the operator's room shows of history."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.utils.translation import gettext, ngettext_lazy

from jobs.conf import conf
from jobs.contrib.history import store
from jobs.contrib.operator.problem import WARNING, Kind, Problem
from jobs.store import databases, of

#: With fewer days ahead than this something is wrong.
FEW = 2

KINDS = {
    "history": Kind(
        severity=WARNING,
        many=ngettext_lazy("history has no next day", "history has no next day in %(number)s databases", "number"),
        before="unpruned",
    )
}


def problems(found: dict[str, Any]) -> Iterator[Problem]:
    for alias in conf().DATABASES:
        if of(alias).is_divided and (lacking := list(store.missing(alias, FEW, databases.clock(alias)))):
            says = gettext("history has no partition for %(day)s") % {"day": lacking[0]}
            means = gettext(
                "The oldest worker makes them a week ahead. Its role may not (jobs.W038), it cannot get the lock, or "
                "no worker runs. Jobs still end: they go to the rest, and are deleted row by row."
            )
            yield Problem("history", says, means, "manage.py jobs prune --once", about=alias)
