"""At most one waiting job per key, by a partial unique index (``jobs_job_unique``).

A second ``delay()`` in another transaction waits until the first one commits (then it returns the first one's job) or
rolls back (then it inserts its own). The wait is bounded: two transactions that take keys and row locks in opposite
order would wait for each other, perhaps in a web request.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import IntegrityError, OperationalError, connections, transaction
from django.db.models import Q
from django.db.models.functions import Now

from jobs import databases
from jobs.conf import conf
from jobs.errors import UniqueBusy
from jobs.models import UNIQUE, Job

#: How often an INSERT is repeated that met a job which was gone the next moment.
TRIES = 10

#: PostgreSQL's codes: the wait took longer than lock_timeout; a deadlock.
GAVE_UP = ("55P03", "40P01")


def insert(jobs: Sequence[Job], using: str, batch_size: int | None) -> list[Job]:
    """Insert jobs with unique keys into the caller's transaction.

    Returns:
        For each of them the job that waits now: itself, or the one that was there already.

    Raises:
        UniqueBusy: another transaction has a key, and does not come to its end; nothing was inserted.
        django.db.IntegrityError: a ``task_id`` that a job already has.
    """
    missing = {job.pk: job for job in sorted(jobs, key=lambda job: job.unique_key or "")}
    found: dict[uuid.UUID, Job] = {}
    try:
        with bounded(using):
            for _ in range(TRIES):
                _free_expired(missing, using)
                Job.objects.using(using).bulk_create(missing.values(), ignore_conflicts=True, batch_size=batch_size)
                holders = {job.unique_key: job for job in _holders(missing.values(), using)}
                for key, job in missing.items():
                    if (holder := holders.get(job.unique_key)) is not None:
                        found[key] = job if holder.pk == key else holder
                    elif Job.objects.using(using).filter(pk=key).exists():
                        raise IntegrityError(f"there is a job with the id {key} already")
                missing = {key: job for key, job in missing.items() if key not in found}
                if not missing:
                    return [found[job.pk] for job in jobs]
    except OperationalError as exc:
        if databases.sqlstate(exc) not in GAVE_UP:
            raise
        keys = ", ".join(sorted({repr(job.unique_key) for job in missing.values()})[:3])
        raise UniqueBusy(
            f"another transaction is enqueueing a job of the key {keys}, and did not end within "
            f"{conf().UNIQUE_WAIT:g} s: call delay() at the end of the transaction, and take keys in one order"
        ) from exc
    raise UniqueBusy(f"the jobs of the key {job.unique_key!r} come and go too fast; try again")


def describe(job: Job) -> str:
    """Why a job cannot wait again, and what to do."""
    holder = next(iter(_holders([job], str(job._state.db))), None)
    who = f"the job {holder.pk} ({holder.state})" if holder is not None else "another job"
    return (
        f"{who} has the unique key {job.unique_key!r} and does the same work: there is nothing to do, or replay this "
        "one when that has ended"
    )


def _holders(jobs: Any, using: str) -> Any:
    return Job.objects.using(using).filter(UNIQUE, unique_key__in={job.unique_key for job in jobs})


def _free_expired(jobs: dict[uuid.UUID, Job], using: str) -> None:
    """``unique_for=`` is over. Race: the row may be claimed meanwhile; it loses its key all the same."""
    late = _holders(jobs.values(), using).filter(Q(unique_expires_at__lte=Now()))
    keys = list(late.values_list("pk", flat=True))
    if keys:
        Job.objects.using(using).filter(pk__in=keys).update(unique_key=None)


@contextmanager
def bounded(using: str) -> Iterator[None]:
    """A savepoint in which nothing waits for another transaction longer than ``JOBS["UNIQUE_WAIT"]`` (PostgreSQL)."""
    with transaction.atomic(using=using):
        if connections[using].vendor != "postgresql":
            yield
            return
        with connections[using].cursor() as cursor:
            cursor.execute(
                "SELECT current_setting('lock_timeout'), set_config('lock_timeout', %s, true)",
                # Two that wait for each other would give up at the same moment; now the second one goes on.
                [f"{random.uniform(0.7, 1) * conf().UNIQUE_WAIT * 1000:.0f}ms"],
            )
            [before, _] = cursor.fetchone()
        yield
        # After an exception the end of the savepoint does the same.
        with connections[using].cursor() as cursor:
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [before])
