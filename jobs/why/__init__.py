"""Why a job is where it is: the reasons in the order in which they count, with evidence and cure.

The engine behind ``manage.py jobs why`` and the job's page. It reads, and changes nothing.
"""

from __future__ import annotations

import uuid

from django.utils.translation import gettext

from jobs.conf import conf
from jobs.models import State
from jobs.why import ended, running, waiting
from jobs.why.reason import Reason
from jobs.why.view import View, look

__all__ = ["Reason", "View", "explain", "reasons"]


def explain(key: uuid.UUID) -> tuple[View | None, list[Reason]]:
    """The job, if there is one of that id, and the reasons; never without a reason."""
    view = look(key)
    return view, [unknown(key)] if view is None else reasons(view)


def reasons(view: View) -> list[Reason]:
    match view.job.state:
        case State.SCHEDULED | State.READY:
            found = waiting.reasons(view)
        case State.RUNNING:
            found = running.reasons(view)
        case _:
            found = ended.reasons(view)
    once: dict[str, Reason] = {}
    for reason in found:
        # What two rules say counts where it comes first.
        once.setdefault(reason.code, reason)
    return list(once.values())


def unknown(key: uuid.UUID) -> Reason:
    aliases = ", ".join(conf().DATABASES)
    return Reason(
        "unknown",
        gettext(
            "There is no such job in %(databases)s: the transaction that enqueued it was rolled back or is still open, "
            "the id is of a task that is no job, or the job ended long ago and was pruned."
        )
        % {"databases": aliases},
        gettext(
            "Look for the id in the logs of the process that enqueued it; compare its DATABASE_URL with this one's."
        ),
        {"id": str(key), "databases": list(conf().DATABASES)},
    )
