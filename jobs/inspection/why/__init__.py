"""Why a job is where it is: the reasons in the order in which they count, with evidence and cure.

The engine behind ``manage.py jobs why`` and the job's page. It reads, and changes nothing. The files beside this
one have the reasons, by the state of the job.
"""

import uuid
from typing import Any

from django.db.models.functions import Now
from django.utils.translation import gettext, ngettext

from jobs import extensions
from jobs.calling import batches
from jobs.conf import conf
from jobs.database import databases
from jobs.inspection.why import ended, running, waiting
from jobs.inspection.why.view import Reason, View
from jobs.models import ENDED, LIVE, Batch, Job, State


def explain(key: uuid.UUID) -> tuple[View | None, list[Reason]]:
    """The job, if there is one of that id, and the reasons; never without a reason."""
    job = databases.first(Job.objects.annotate(read_at=Now()).filter(pk=key))
    if job is None and (batch := databases.first(Batch.objects.filter(pk=key))) is not None:
        return None, [_batch(batch)]
    if job is None:
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


def _batch(batch: Batch) -> Reason:
    """Why a batch has not ended."""
    counts = batches.counts(batch)
    live = Job.objects.using(batch._state.db).filter(batch=batch.pk, state__in=LIVE).order_by("pk").first()
    words: dict[str, Any] = {
        "name": batch.name,
        "ended": sum(counts.get(state, 0) for state in ENDED),
        "all": sum(counts.values()),
    }
    if batch.ended_at is not None or live is None:
        cure = ""
        says = ngettext(
            "It is a batch, %(name)s, of %(all)s job, which has ended.",
            "It is a batch, %(name)s, of %(all)s jobs, and all have ended.",
            words["all"],
        )
        if batch.ended_at is None:
            cure = gettext(
                "A worker calls what follows within a second or so. If none does, their log says why it cannot be "
                "called."
            )
        for called in batch.called.values():
            if databases.first(Job.objects.filter(pk=called["id"])) is not None:
                says += " " + gettext("It called %(task)s: job %(id)s.") % called
                cure = f"manage.py jobs why {called['id']}"
                continue
            none = gettext(
                "It called %(task)s, and there is no such job: the worker that called it did not know the task, the "
                "task is none of jobs, it is a chain or a group, or the job was pruned."
            )
            says += " " + none % called
            cure = gettext("See that all workers import the task (autodiscover_tasks, imports).")
        return Reason("batch_ended", says, cure, words, called=batch.called)
    says = ngettext(
        "It is a batch, %(name)s, of %(all)s job, and it waits for its end.",
        "It is a batch, %(name)s: %(ended)s of %(all)s jobs have ended, and it waits for the others.",
        words["all"],
    )
    return Reason("batch_waits", says, f"manage.py jobs why {live.pk}", words, job=live.pk, **counts)


#: The looks for reasons by the job's state, in their order; those of failed jobs also for a state that does not exist.
LOOKS: dict[str, Any] = {
    State.SCHEDULED: waiting.LOOKS,
    State.READY: waiting.LOOKS,
    State.RUNNING: running.LOOKS,
    State.SUCCEEDED: (ended.succeeded,),
    State.CANCELLED: (ended.taken_key, ended.cancelled),
}
FAILED = (ended.taken_key, ended.failed)
