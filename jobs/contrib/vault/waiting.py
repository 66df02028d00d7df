"""The reason for jobs that wait because no worker could read their encrypted arguments."""

from __future__ import annotations

from collections.abc import Iterator

from django.utils.translation import gettext

from jobs.contrib.inspection.times import duration
from jobs.contrib.inspection.view import Reason, View
from jobs.contrib.vault.tokens import CannotDecrypt


def cure() -> str:
    return gettext(
        "Give all workers the key that was the first of JOBS['ENCRYPT_KEYS'] when they were called, behind the newer "
        "ones. Until then they are tried again, after half a minute and then ever less often, and use no attempt."
    )


def waits(view: View) -> Iterator[Reason]:
    if view.job.waits_for == CannotDecrypt.waits_for:
        says = gettext(
            "The worker that took it cannot decrypt its arguments (%(error)s). It is tried again in %(until)s."
        )
        error, left = view.error or {}, max(0.0, -view.since(view.job.run_at))
        words = {"until": duration(left), "error": error.get("message", "?")}
        yield Reason("no_key", says, cure(), words, run_at=view.job.run_at, seconds=left)
