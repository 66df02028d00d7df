"""Jobs whose encrypted arguments no worker could read: in the operator's room, and in ``why``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.utils.translation import gettext, ngettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from jobs.conf import conf
from jobs.contrib.operator.problem import Kind, Link, Problem
from jobs.contrib.vault.tokens import CannotDecrypt
from jobs.inspection.counts import MOST
from jobs.inspection.times import duration
from jobs.inspection.view import Reason, View
from jobs.models import AWAITING, Job
from jobs.store import databases

KINDS = {
    "no_key": Kind(
        severity="error",
        many=ngettext_lazy("%(number)s job of an unknown key", "%(number)s jobs of unknown keys", "number"),
        place=lambda _about: Link(_("Show them"), "job_changelist", query={"state__exact": "scheduled"}),
    ),
}


def _cure() -> str:
    return gettext(
        "Give all workers the key that was the first of JOBS['ENCRYPT_KEYS'] when they were called, behind the newer "
        "ones. Until then they are tried again, after half a minute and then ever less often, and use no attempt."
    )


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
        yield Problem("no_key", says % {"number": number}, _cure(), number=number)


def waits(view: View) -> Iterator[Reason]:
    if view.job.waits_for == CannotDecrypt.waits_for:
        says = gettext(
            "The worker that took it cannot decrypt its arguments (%(error)s). It is tried again in %(until)s."
        )
        error, left = view.error or {}, max(0.0, -view.since(view.job.run_at))
        words = {"until": duration(left), "error": error.get("message", "?")}
        yield Reason("no_key", says, _cure(), words, run_at=view.job.run_at, seconds=left)
