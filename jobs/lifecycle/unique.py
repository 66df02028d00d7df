"""At most one waiting job per key, by a partial unique index (``jobs_job_unique``).

A second ``delay()`` in another transaction waits until the first one commits (then it returns the first one's job) or
rolls back (then it inserts its own). The wait is bounded: two transactions that take keys and row locks in opposite
order would wait for each other, perhaps in a web request.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

from django.db import IntegrityError, OperationalError
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.utils.translation import gettext_noop

from jobs import extensions, store
from jobs.conf import conf
from jobs.errors import UniqueBusy
from jobs.models import UNIQUE, WAITING, Job
from jobs.store import databases

#: How often an INSERT is repeated that met a job which was gone the next moment.
TRIES = 10


def insert(jobs: Sequence[Job], using: str, batch_size: int | None) -> list[Job]:
    """Insert jobs with unique keys into the caller's transaction; for each, return the job that waits now.

    Raises:
        UniqueBusy: another transaction has a key, and does not end in time; nothing was inserted.
        django.db.IntegrityError: a ``task_id`` that a job already has.
        ValueError: the key is taken by a job of another task.
    """
    missing = sorted(jobs, key=lambda job: job.unique_key or "")
    found: dict[uuid.UUID, Job] = {}
    rows = Job.objects.using(using)
    try:
        with store.of(using).bounded(conf().UNIQUE_WAIT):
            for _ in range(TRIES):
                _free_expired(missing, using)
                # Here an INSERT locks the job that has the key: no worker could claim it before the caller's commit.
                there = _holders(missing, using) if store.of(using).locks_what_it_meets else ()
                taken = {job.unique_key for job in there}
                new = [job for job in missing if job.unique_key not in taken]
                rows.bulk_create(new, ignore_conflicts=True, batch_size=batch_size)
                holders = {job.unique_key: job for job in _holders(missing, using)}
                for job in missing:
                    if (holder := holders.get(job.unique_key)) is None:
                        if rows.filter(pk=job.pk).exists():
                            if job.is_frozen:
                                job.take_own_id()
                                continue
                            raise IntegrityError(f"there is a job with the id {job.pk} already")
                    elif holder.task != job.task:
                        raise ValueError(
                            f"the key {job.unique_key!r} of {job.task} is taken by the job {holder.pk} of "
                            f"{holder.task}, which does other work: all tasks share the keys, so begin each with a "
                            "name of its own"
                        )
                    else:
                        found[job.pk] = job if holder.pk == job.pk else holder
                missing = [job for job in missing if job.pk not in found]
                if not missing:
                    return [found[job.pk] for job in jobs]
    except OperationalError as exc:
        if not databases.gave_up(exc):
            raise
        keys = ", ".join(sorted({repr(job.unique_key) for job in missing})[:3])
        raise UniqueBusy(
            f"another transaction is enqueueing a job of the key {keys}, and did not end within "
            f"{conf().UNIQUE_WAIT:g} s: call delay() at the end of the transaction, and take keys in one order"
        ) from exc
    raise UniqueBusy(f"the jobs of the key {job.unique_key!r} come and go too fast; try again")


def describe(job: Job, say: Callable[[str], str] = str) -> str:
    """Why a job cannot wait again, and what to do; ``say`` is gettext for a reader, as what is stored is English."""
    who = say(gettext_noop("another job"))
    if (holder := holder_of(job)) is not None:
        who = say(gettext_noop("the job %(id)s (%(state)s)")) % {"id": holder.pk, "state": say(holder.state)}
    text = gettext_noop(
        "%(who)s has the unique key %(key)r and does the same work: there is nothing to do, or replay this one when "
        "that has ended"
    )
    return say(text) % {"who": who, "key": extensions.instead(shown_key)(job)}


def shown_key(job: Job) -> str:
    """The key as people may see it. An extension may keep it back."""
    return str(job.unique_key)


def holder_of(job: Job) -> Job | None:
    """The other job that has this one's unique key; None if ``unique_for=`` of this one is over: it needs no key."""
    if job.unique_key is None:
        return None
    if job.unique_expires_at is not None and job.unique_expires_at <= databases.clock(str(job._state.db)):
        return None
    return _holders([job], str(job._state.db)).exclude(pk=job.pk).first()


def _holders(jobs: Sequence[Job], using: str) -> QuerySet[Job]:
    return Job.objects.using(using).filter(UNIQUE, unique_key__in={job.unique_key for job in jobs})


#: An expired job that is not cancelled yet will not run any more: a call that took it for its own would be lost.
_OVER = Q(unique_expires_at__lte=Now()) | Q(state__in=WAITING, expires_at__lte=Now())


def _free_expired(jobs: Sequence[Job], using: str) -> None:
    """``unique_for=`` is over, or the job has expired: the jobs that had the keys go on without them."""
    keys = list(_holders(jobs, using).filter(_OVER).values_list("pk", flat=True))
    if keys:
        store.of(using).free_unique_keys(keys, _OVER)
