"""What the operator's room shows of external calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from django.db.models import Exists, OuterRef
from django.utils.translation import gettext, ngettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from jobs.conf import conf
from jobs.contrib.effects import rows
from jobs.contrib.inspection.counts import MOST
from jobs.contrib.operator.problem import Kind, Link, Problem, ago
from jobs.models import LIVE, Job

NAMED = 20  #: At most so many names of calls are named.

KINDS = {
    "unknown_call": Kind(
        severity="error",
        many=ngettext_lazy(
            "%(number)s external call may have been made", "%(number)s external calls may have been made", "number"
        ),
        place=lambda name: Link(_("Say what happened"), "effect_changelist", query={"status": "unsettled", "q": name}),
        is_fault=False,
        before="failing",
        permission="view_effect",
    )
}


def metrics() -> Iterator[tuple[str, str, list[str], Any]]:
    def unsettled(_found: Any) -> list[Any]:
        return [([], sum(rows.unsettled(alias).count() for alias in conf().DATABASES))]

    yield "jobs_unsettled_effects", "External calls that are ambiguous or parked.", [], unsettled


def problems(_found: dict[str, Any]) -> Iterator[Problem]:
    """The calls about which a person has to say what happened, by name. A live job is left out: its run decides."""
    number, since = Counter[str](), dict[str, float]()
    for alias in conf().DATABASES:
        live = Job.objects.using(alias).filter(pk=OuterRef("job"), state__in=LIVE)
        for row in rows.unsettled(alias).exclude(Exists(live)).only("name", "created_at")[:MOST]:
            number[row.name] += 1
            since[row.name] = max(since.get(row.name, 0.0), ago(row.created_at))
    for name, count in number.most_common(NAMED):
        says = ngettext(
            "%(name)s: %(number)s external call may have been made, and nobody knows: say what happened",
            "%(name)s: %(number)s external calls may have been made, and nobody knows: say what happened",
            count,
        ) % {"name": name, "number": count}
        means = gettext("Ask the provider for each key, and say whether it happened; then retry its job, not before.")
        yield Problem("unknown_call", says, means, "manage.py jobs effects", since[name], name, count)
