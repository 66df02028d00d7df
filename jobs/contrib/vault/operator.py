"""Problems in the operator's room: jobs whose encrypted arguments no worker could read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext, ngettext_lazy

from jobs.conf import conf
from jobs.contrib.inspection.counts import MOST
from jobs.contrib.operator.problem import Kind, Link, Problem
from jobs.contrib.vault.tokens import CannotDecrypt
from jobs.contrib.vault.waiting import cure
from jobs.models import AWAITING, Job
from jobs.store import databases

KINDS = {
    "no_key": Kind(
        severity="error",
        many=ngettext_lazy("%(number)s job of an unknown key", "%(number)s jobs of unknown keys", "number"),
        place=lambda _about: Link(_("Show them"), "job_changelist", query={"state__exact": "scheduled"}),
    ),
}


def problems(found: dict[str, Any]) -> Iterator[Problem]:
    if not conf().ENCRYPT_KEYS and not conf().ENCRYPT:
        return
    waiting = Job.objects.filter(AWAITING, waits_for=CannotDecrypt.waits_for)
    number = sum(rows[:MOST].count() for rows in databases.each(waiting))
    if number:
        says = ngettext(
            "%(number)s job waits for a worker that can decrypt its arguments",
            "%(number)s jobs wait for a worker that can decrypt their arguments",
            number,
        )
        yield Problem("no_key", says % {"number": number}, cure(), number=number)
