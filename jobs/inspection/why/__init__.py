"""Why a job is where it is: the reasons in the order in which they count, with evidence and cure.

The engine behind ``manage.py jobs why`` and the job's page. It reads, and changes nothing. The files beside this
one have the reasons, by the state of the job.
"""

import uuid
from typing import Any

from django.db.models.functions import Now
from django.utils.translation import gettext

from jobs import extensions
from jobs.conf import conf
from jobs.inspection.why import ended, running, waiting
from jobs.inspection.why.view import Reason, View
from jobs.models import Job, State
from jobs.store import databases


def explain(key: uuid.UUID) -> tuple[View | None, list[Reason]]:
    """The job, if there is one of that id, and the reasons; never without a reason."""
    job = databases.first(Job.objects.annotate(read_at=Now()).filter(pk=key))
    if job is None:
        for look in extensions.through("other"):
            if (found := look(key)) is not None:
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
    view = View(job)
    once: dict[str, Reason] = {}
    *looks, last = LOOKS.get(job.state, FAILED)
    for look in (*looks, *extensions.through("causes"), last, *extensions.through("reasons")):
        for reason in look(view):
            # Two looks may find the same reason: the first one counts.
            once.setdefault(reason.code, reason)
    return view, [reason if view.seen.path is None else reason.veiled(view.seen) for reason in once.values()]


#: The looks for reasons by the job's state, in their order; those of failed jobs also for a state that does not exist.
LOOKS: dict[str, Any] = {
    State.SCHEDULED: waiting.LOOKS,
    State.READY: waiting.LOOKS,
    State.RUNNING: running.LOOKS,
    State.SUCCEEDED: (ended.succeeded,),
    State.CANCELLED: (ended.taken_key, ended.cancelled),
}
FAILED = (ended.taken_key, ended.failed)
