"""A copy of a database (``identity.py``): what would run in it, and how to activate it."""

from typing import Any

from django.db.models.functions import Now

from jobs import extensions
from jobs.conf import conf
from jobs.contrib.adoption.identity import mark_of
from jobs.contrib.adoption.models import Instance
from jobs.lifecycle import transitions
from jobs.models import LIVE, WAITING, Job, Node, State
from jobs.store.identity import marks


def survey(alias: str) -> dict[str, Any]:
    """What the database is marked as, what it is, and what would run if it were activated."""
    # One statement for each state: a single one could not use the partial indexes.
    counts = {str(state): Job.objects.using(alias).filter(state=state).count() for state in LIVE}
    found = {**marks(alias), "jobs": counts}
    for disown in extensions.through("disown"):
        found |= disown(alias, is_dry=True)
    return found


def activate(alias: str) -> None:
    """Mark the database as this one: workers may start, and run what is in it."""
    Instance.objects.using(alias).update_or_create(pk=1, defaults={"mark": mark_of(alias), "adopted_at": Now()})


def cancel_all(alias: str) -> int:
    """Cancel every job of a copy that has not ended, also those that its original was running; return how many.

    A running one whose row is locked is left: count again.
    """
    why = "cancelled by `manage.py jobs adopt --cancel`: the database is a copy"

    def cancel(job: Job) -> bool:
        return transitions.cancel_running(job, transitions.error_entry("Cancelled", why, attempt=job.lease))

    for node in Node.objects.using(alias).filter(dead_at=None):
        # If this worker is alive, it works on the original. Here it may claim nothing.
        transitions.write_death(node.pk, alias)
    running = list(Job.objects.using(alias).filter(state=State.RUNNING).values_list("pk", flat=True))
    done = sum(transitions.finish_running(job_id, alias, cancel) for job_id in running)
    for disown in extensions.through("disown"):
        disown(alias, is_dry=False)
    while cancelled := cancel_waiting(alias, conf().BATCH, why):
        done += cancelled
    return done


def cancel_waiting(using: str, limit: int, why: str) -> int:
    """Cancel one batch of all waiting jobs; no signal is sent, and no extension is asked."""
    ids = list(Job.objects.using(using).filter(state__in=WAITING).values_list("pk", flat=True)[:limit])
    return transitions.cancel_all(ids, using, "Cancelled", why, is_told=False)
