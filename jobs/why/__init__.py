"""Why a job is where it is: the reasons in the order in which they count, with evidence and cure.

The engine behind ``manage.py jobs why`` and the job's page. It reads, and changes nothing.
"""

from __future__ import annotations

import uuid

from django.db.models.functions import Now
from django.utils.translation import gettext

from jobs.conf import conf
from jobs.models import State
from jobs.selection import find
from jobs.why import begun, waiting
from jobs.why.view import Reason, View

__all__ = ["Reason", "View", "explain"]

#: For each state where reasons are looked for, in their order. Of other states, which no job should have, nobody knows
#: more than of those that failed.
LOOKS = {
    State.SCHEDULED: waiting.LOOKS,
    State.READY: waiting.LOOKS,
    State.RUNNING: begun.RUNNING,
    State.SUCCEEDED: (begun.succeeded,),
    State.CANCELLED: (begun.taken_key, begun.cancelled),
}
FAILED = (begun.taken_key, begun.failed)


def explain(key: uuid.UUID) -> tuple[View | None, list[Reason]]:
    """The job, if there is one of that id, and the reasons; never without a reason."""
    job = find(key, read_at=Now())
    if job is None:
        return None, [_unknown(key)]
    view = View(job)
    once: dict[str, Reason] = {}
    for look in LOOKS.get(job.state, FAILED):
        for reason in look(view):
            # What two of them say counts where it comes first.
            once.setdefault(reason.code, reason)
    return view, list(once.values())


def _unknown(key: uuid.UUID) -> Reason:
    says = gettext(
        "There is no such job in %(databases)s: the transaction that enqueued it was rolled back or is still open, "
        "the id is of a task that is no job, or the job ended long ago and was pruned."
    )
    cure = gettext(
        "Look for the id in the logs of the process that enqueued it; compare its DATABASE_URL with this one's."
    )
    databases = list(conf().DATABASES)
    return Reason("unknown", says % {"databases": ", ".join(databases)}, cure, id=key, databases=databases)
