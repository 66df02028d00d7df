"""Why a job is where it is: puts the reasons in the order in which they count. It only reads.

The reasons are in the files beside this one, by the job's state: ``waiting.py``, ``running.py``, ``ended.py``.
"""

import uuid
from typing import Any

from django.utils.translation import gettext

from jobs import extensions
from jobs.conf import conf
from jobs.contrib.inspection.view import Reason, View, look_up, other
from jobs.contrib.redaction.display import Shown
from jobs.contrib.why import ended, running, waiting
from jobs.models import State


def explain(key: uuid.UUID) -> tuple[View | None, list[Reason]]:
    """The job, if there is one with this id, and the reasons: at least one."""
    if (view := look_up(key)) is not None:
        return view, of(view)
    found: Any = other(key, "reasons")
    if found is not None:
        return None, [*found.reasons()]
    says = gettext(
        "There is no such job in %(databases)s: the transaction that enqueued it was rolled back or is still open, "
        "the id is of a task that is no job, or the job ended long ago and was pruned."
    )
    cure = gettext(
        "Look for the id in the logs of the process that enqueued it; compare its DATABASE_URL with this one's."
    )
    names = list(conf().DATABASES)
    return None, [Reason("unknown", says, cure, {"databases": ", ".join(names)}, id=key, databases=names)]


def of(view: View) -> list[Reason]:
    """The reasons of a job: those of its state, with those of extensions among them.

    A cause (``Reason.is_cause``) comes before the state's last reason, which describes the situation; others after it.
    """
    once: dict[str, Reason] = {}
    *looks, last = LOOKS.get(view.job.state, FAILED)
    more = [reason for look in extensions.through("reasons") for reason in look(view)]
    first = [reason for look in looks for reason in look(view)]
    causes, others = [[each for each in more if each.is_cause is wanted] for wanted in (True, False)]
    for reason in (*first, *causes, *last(view), *others):
        # Two looks may find the same reason: the first one counts.
        once.setdefault(reason.code, reason)
    return [reason if view.seen.is_whole else _veiled(reason, view.seen) for reason in once.values()]


def _veiled(reason: Reason, seen: Shown) -> Reason:
    """Blank the job's redacted arguments: keys and errors may contain them."""
    reason.says, reason.cure = seen.blanked(reason.says), seen.blanked(reason.cure)
    evidence = reason.evidence.items()
    reason.evidence = {name: seen.blanked(value) if isinstance(value, str) else value for name, value in evidence}
    return reason


#: The functions that look for reasons, by the job's state, in order; an unknown state uses those of failed jobs.
LOOKS: dict[str, Any] = {
    State.SCHEDULED: waiting.LOOKS,
    State.READY: waiting.LOOKS,
    State.RUNNING: running.LOOKS,
    State.SUCCEEDED: (ended.succeeded,),
    State.CANCELLED: (ended.taken_key, ended.cancelled),
}
FAILED = (ended.taken_key, ended.failed)
