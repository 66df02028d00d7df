"""A copy of a database (``jobs.store.identity``): what would run in it, and to activate it."""

from typing import Any

from django.db.models.functions import Now

from jobs import extensions
from jobs.conf import conf
from jobs.lifecycle import transitions
from jobs.models import LIVE, Instance, Job, Node, State
from jobs.store import identity


def survey(alias: str) -> dict[str, Any]:
    """What the database is marked as, what it is, and what would run if it were activated."""
    # One statement for each: together they could not use their partial indexes.
    counts = {str(state): Job.objects.using(alias).filter(state=state).count() for state in LIVE}
    more = {name: count for survey in extensions.through("survey") for name, count in survey(alias).items()}
    return {**identity.marks(alias), "jobs": counts, **more}


def activate(alias: str) -> None:
    """Mark the database as this one: workers may start, and run what is in it."""
    Instance.objects.using(alias).update_or_create(
        pk=1, defaults={"mark": identity.mark_of(alias), "adopted_at": Now()}
    )


def cancel_all(alias: str) -> int:
    """Cancel every job of a copy that has not ended, also those that its original was running; return how many.

    A running one whose row somebody holds locked is left: count again.
    """
    why = "cancelled by `manage.py jobs adopt --cancel`: the database is a copy"

    def cancel(job: Job) -> bool:
        return transitions.cancel_running(job, transitions.error_entry("Cancelled", why, attempt=job.lease))

    for node in Node.objects.using(alias).filter(dead_at=None):
        # If it lives, then beside the original. Here it may claim nothing.
        transitions.bury(node.pk, alias)
    running = list(Job.objects.using(alias).filter(state=State.RUNNING).values_list("pk", flat=True))
    done = sum(transitions.finish_running(job_id, alias, cancel) for job_id in running)
    for forget in extensions.through("disown"):
        forget(alias)
    while cancelled := transitions.cancel_waiting(alias, conf().BATCH, why):
        done += cancelled
    return done
