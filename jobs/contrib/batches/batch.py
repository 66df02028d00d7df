"""Batches: many jobs with one name, one progress bar, and one end, at which a callback is called once.

A job has the id of its batch, and no counter is updated when a job ends: 100,000 jobs would all wait for one row. Every
worker looks once a second at the open batches. If a batch has no job that may still run, the worker closes the batch
and calls its callback, in one transaction.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from celery import current_app
from celery.canvas import Signature, signature
from django.db import transaction
from django.db.models import Count, Exists, OuterRef, QuerySet
from django.db.models.functions import Now

from jobs.calling import outbox
from jobs.conf import conf, is_ours
from jobs.conf.logs import logger
from jobs.contrib.batches.models import Batch
from jobs.contrib.stock_calls.sending import calls_are_rows
from jobs.errors import LostLease
from jobs.lifecycle import transitions
from jobs.lifecycle.run import current_job, current_run
from jobs.lifecycle.transitions import now_plus
from jobs.lifecycle.worker_state import BODY
from jobs.models import LIVE, UNSUCCESSFUL, Job, State
from jobs.models.values import decoded, scrub, storable
from jobs.store import databases

#: Seconds until a batch whose callback could not be called is tried again; and for which a batch without jobs is kept.
PAUSE, KEPT = 60.0, 7 * 86400.0

#: The batch that the calls of a block join, and its database.
joining: ContextVar[tuple[uuid.UUID, str] | None] = ContextVar("jobs.joining", default=None)


@contextmanager
def batch(
    name: str, on_success: Signature | None = None, on_failure: Signature | None = None, using: str | None = None
) -> Iterator[Batch]:
    """Make all calls of the block one batch, in one transaction: all of them commit, or none.

    When all jobs of the batch have ended, a worker notes that and calls the callback as it is, in one transaction.

    Parameters:
        name: for people.
        on_success: called once, when all jobs have succeeded, if need be after retries.
        on_failure: called once, when all jobs have ended, and not all have succeeded.
        using: as of ``apply_async``.

    Raises:
        RuntimeError: in the block of another batch.
        TypeError: a callback that is no signature or lacks arguments, or a call that cannot be kept.
    """
    if joining.get() is not None:
        raise RuntimeError(f"the batch {name!r} is made in the block of another one: batches cannot be nested")
    alias = databases.job_alias(using)
    kept = {"on_success": _kept(on_success, "on_success"), "on_failure": _kept(on_failure, "on_failure")}
    with transaction.atomic(using=alias):
        made = Batch.objects.using(alias).create(name=scrub(str(name), 255), **kept)
        with _joining(made):
            yield made


def _kept(callback: Any, name: str) -> Any:
    if callback is None:
        return None
    if not isinstance(callback, Signature):
        raise TypeError(f"{name} must be a signature (task.s(...)), and not {callback!r}")
    task = current_app.tasks.get(callback.task)
    if task is not None and is_ours(task) and task.typing and (takes := getattr(task, "__header__", None)):
        # Raise to the caller now: at the end of the batch no worker could call it, and the batch would stay open.
        takes(*callback.args, **callback.kwargs)
    return storable(dict(callback), name)


@contextmanager
def adding(to: Batch) -> Iterator[None]:
    """See ``Batch.adding``."""
    using = str(to._state.db)
    run = current_run()
    with transaction.atomic(using=using):
        # A job keeps its own batch open, but not for what the body has called after its commit.
        if run is None or run.job.batch_id != to.pk or (run.is_atomic and run.slot.phase != BODY):
            # Race: the worker that closes the batch holds this lock. While a job of it runs, no worker closes it.
            open_ones = Batch.objects.using(using).select_for_update().filter(pk=to.pk, ended_at=None)
            if not open_ones.exists():
                raise ValueError(f"the batch {to} has ended: make another one")
        elif not run.is_atomic and not transitions.hold(run.job):
            # This run is a zombie, and its batch may have ended. An atomic body's calls commit with its completion.
            raise LostLease("this run lost its lease; what it adds to its batch is rolled back")
        with _joining(to):
            yield


@contextmanager
def _joining(to: Batch) -> Iterator[None]:
    token = joining.set((to.pk, str(to._state.db)))
    try:
        yield
    finally:
        joining.reset(token)


def join(jobs: list[Any], using: str) -> None:
    """Let the calls join the batch of their block. What follows a job of a batch belongs to it as well."""
    batch, place = joining.get() or (None, using)
    if place != using:
        raise ValueError(f"the batch is in the database {place!r}, and cannot have jobs in {using!r}")
    if batch is None and outbox.following.get() is not None and (before := current_job()) is not None:
        batch = before.batch_id
    if batch is not None:
        for job in jobs:
            job.batch_id = batch


def counts(of: Batch) -> dict[str, int]:
    """How many jobs of the batch are in each state; for a batch that has ended, as it was then."""
    if of.ended_at is not None:
        return dict(of.counts)
    rows = Job.objects.using(of._state.db).filter(batch=of.pk).order_by().values_list("state")
    # All that it needs is in the index.
    return dict(rows.annotate(number=Count("*")))


#: When to try again the batches whose callback could not be called.
_later: dict[uuid.UUID, float] = {}


def close_ended(using: str) -> int:
    """Close the open batches without a job that may still run, and call their callbacks; returns how many."""
    live = Job.objects.using(using).filter(batch=OuterRef("pk"), state__in=LIVE)
    over = Batch.objects.using(using).filter(~Exists(live), ended_at=None)
    done, now = 0, time.monotonic()
    # Those that still wait for another try are left out: they must not delay other batches.
    for key in [key for key, at in _later.items() if at <= now]:
        del _later[key]
    for key in list(over.exclude(pk__in=list(_later)).values_list("pk", flat=True)[: conf().BATCH]):
        try:
            done += _close(key, using)
        except Exception as exc:
            if databases.is_lost(exc, using):
                raise
            _later[key] = time.monotonic() + PAUSE
            extra = {"action": "batch_failed", "batch": str(key)}
            logger.exception("the callback of the batch %s cannot be called", key, extra=extra)
    return done


def _close(key: uuid.UUID, using: str) -> bool:
    with transaction.atomic(using=using):
        found = databases.free(Batch.objects.using(using).filter(pk=key, ended_at=None)).first()
        # Race: another worker closes it, or a job of it was retried since, or has called another job.
        if found is None or Job.objects.using(using).filter(batch=key, state__in=LIVE).exists():
            return False
        found.counts = counts(found)
        has_failed = any(found.counts.get(state) for state in (State.FAILED, State.CANCELLED))
        name = "on_failure" if has_failed else "on_success"
        callback = getattr(found, name)
        called = dict(found.called)
        if callback is not None:
            with calls_are_rows(using):
                result = signature(decoded(callback), app=current_app._get_current_object()).apply_async()
            # An empty chain calls nothing.
            if result is not None:
                called[name] = {"task": callback["task"], "id": str(result.id)}
        ended = {"ended_at": Now(), "counts": found.counts, "called": called}
        # Called only once: a batch that a retry has opened again ends again.
        Batch.objects.using(using).filter(pk=key).update(**ended, **{name: None})
    total = sum(found.counts.values())
    text = "the batch %s (%s) has ended: %s of %s jobs succeeded"
    extra = {"action": "batch_ended", "batch": str(key)}
    succeeded = found.counts.get(State.SUCCEEDED, 0)
    logger.log(logging.INFO, text, found.name, key, succeeded, total, extra=extra)
    return True


def is_open(using: str) -> Exists:
    """The condition that a job's batch has not ended: it will count the job."""
    return Exists(Batch.objects.using(using).filter(pk=OuterRef("batch"), ended_at=None))


def open_again(jobs: QuerySet[Job], using: str) -> None:
    """Open the batches of jobs that run again. A worker that closes a batch reads its jobs, and waits for no lock."""
    Batch.objects.using(using).filter(pk__in=jobs.filter(batch__isnull=False).values("batch")).update(ended_at=None)


def lose(jobs: QuerySet[Job], using: str) -> None:
    """The jobs are deleted. Deleted jobs cannot be retried: their batch must not seem to have succeeded."""
    lost = jobs.filter(state__in=UNSUCCESSFUL, batch__isnull=False).values("batch")
    Batch.objects.using(using).filter(pk__in=lost, on_success__isnull=False).update(on_success=None)


def disown(using: str) -> None:
    """Remove the callbacks: when a copy's jobs are cancelled its batches end, and a callback would be a new job."""
    Batch.objects.using(using).filter(ended_at=None).update(on_success=None, on_failure=None)


def prune(using: str) -> None:
    """Forget batches whose jobs are gone."""
    of_it = Job.objects.using(using).filter(batch=OuterRef("pk"))
    Batch.objects.using(using).filter(~Exists(of_it), ended_at__lt=now_plus(-KEPT))._raw_delete(using)
