"""At most one waiting job per key, by a partial unique index (``jobs_job_unique``).

A second ``delay()`` in another transaction waits until the first one commits (then it returns the first one's job) or
rolls back (then it inserts its own). The wait is bounded: two transactions that take keys and row locks in opposite
order would wait for each other, perhaps in a web request.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from django.db import IntegrityError, OperationalError, connections
from django.db.models.functions import Now
from django.utils.translation import gettext_noop

from jobs import databases
from jobs.conf import conf
from jobs.errors import UniqueBusy
from jobs.models import UNIQUE, Job

TAKEN = gettext_noop(
    "%(who)s has the unique key %(key)r and does the same work: there is nothing to do, or replay this one when that "
    "has ended"
)
HOLDER = gettext_noop("the job %(id)s (%(state)s)")
NO_LONGER = gettext_noop("another job")

#: How often an INSERT is repeated that met a job which was gone the next moment.
TRIES = 10


def insert(jobs: Sequence[Job], using: str, batch_size: int | None) -> list[Job]:
    """Insert jobs with unique keys into the caller's transaction.

    Returns:
        For each of them the job that waits now: itself, or the one that was there already.

    Raises:
        UniqueBusy: another transaction has a key, and does not come to its end; nothing was inserted.
        django.db.IntegrityError: a ``task_id`` that a job already has.
        ValueError: the key is taken by a job of another task.
    """
    missing = {job.pk: job for job in sorted(jobs, key=lambda job: job.unique_key or "")}
    found: dict[uuid.UUID, Job] = {}
    try:
        with databases.bounded(using, conf().UNIQUE_WAIT):
            for _ in range(TRIES):
                _free_expired(missing, using)
                Job.objects.using(using).bulk_create(missing.values(), ignore_conflicts=True, batch_size=batch_size)
                holders = {job.unique_key: job for job in _holders(missing.values(), using)}
                for key, job in missing.items():
                    if (holder := holders.get(job.unique_key)) is not None:
                        found[key] = job if holder.pk == key else _same_task(job, holder)
                    elif Job.objects.using(using).filter(pk=key).exists():
                        raise IntegrityError(f"there is a job with the id {key} already")
                missing = {key: job for key, job in missing.items() if key not in found}
                if not missing:
                    return [found[job.pk] for job in jobs]
    except OperationalError as exc:
        if not databases.gave_up(exc):
            raise
        keys = ", ".join(sorted({repr(job.unique_key) for job in missing.values()})[:3])
        raise UniqueBusy(
            f"another transaction is enqueueing a job of the key {keys}, and did not end within "
            f"{conf().UNIQUE_WAIT:g} s: call delay() at the end of the transaction, and take keys in one order"
        ) from exc
    raise UniqueBusy(f"the jobs of the key {job.unique_key!r} come and go too fast; try again")


def describe(job: Job, say: Callable[[str], str] = str) -> str:
    """Why a job cannot wait again, and what to do.

    Parameters:
        say: gettext, for a reader. What is stored is English.
    """
    holder = holder_of(job)
    who = say(NO_LONGER) if holder is None else say(HOLDER) % {"id": holder.pk, "state": say(holder.state)}
    return say(TAKEN) % {"who": who, "key": job.unique_key}


def holder_of(job: Job) -> Job | None:
    """The other job that has the unique key of this one."""
    if job.unique_key is None:
        return None
    holder: Job | None = _holders([job], str(job._state.db)).exclude(pk=job.pk).first()
    return holder


def _same_task(job: Job, holder: Job) -> Job:
    if holder.task != job.task:
        raise ValueError(
            f"the key {job.unique_key!r} of {job.task} is taken by the job {holder.pk} of {holder.task}, which does "
            "other work: all tasks share the keys, so begin each with a name of its own"
        )
    return holder


def _holders(jobs: Any, using: str) -> Any:
    return Job.objects.using(using).filter(UNIQUE, unique_key__in={job.unique_key for job in jobs})


def _free_expired(jobs: dict[uuid.UUID, Job], using: str) -> None:
    """``unique_for=`` is over: the jobs that had the keys go on without.

    On PostgreSQL over a connection of its own: in the caller's transaction their rows would stay locked until it ends,
    and nobody could claim or settle them.
    """
    late = _holders(jobs.values(), using).filter(unique_expires_at__lte=Now())
    keys = list(late.values_list("pk", flat=True))
    if not keys:
        return
    if connections[using].vendor == "postgresql" and databases.execute_apart(
        using, "UPDATE jobs_job SET unique_key = NULL WHERE id = ANY(%s) AND unique_expires_at <= now()", [keys]
    ):
        return
    # Its own row, which no other connection sees yet.
    Job.objects.using(using).filter(pk__in=keys).update(unique_key=None)
