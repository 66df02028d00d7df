"""Batches: many jobs with one name, one bar and one end, of which somebody is told once.

A job bears the id of its batch, and nobody counts as they end: 100,000 jobs would all wait for one row. Every worker
looks once a second at the batches that are open. Whoever finds one without a job that may still run closes it, and
calls what is to be called, in one transaction.
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
from jobs.calling.outbox import calls_are_rows
from jobs.conf import conf
from jobs.conf.logs import logger
from jobs.contrib.batches.models import Batch
from jobs.errors import LostLease
from jobs.lifecycle import transitions
from jobs.lifecycle.run import current_job, current_run
from jobs.lifecycle.transitions import now_plus
from jobs.lifecycle.worker_state import BODY
from jobs.models import LIVE, UNSUCCESSFUL, Job, State
from jobs.models.values import decoded, scrub, storable
from jobs.store import databases

#: Seconds until a batch is looked at again whose callback could not be called; and for which one is kept whose jobs are
#: gone.
PAUSE, KEPT = 60.0, 7 * 86400.0

#: The batch that the calls of a block join, and its database.
joining: ContextVar[tuple[uuid.UUID, str] | None] = ContextVar("jobs.joining", default=None)


@contextmanager
def batch(
    name: str, on_success: Signature | None = None, on_failure: Signature | None = None, using: str | None = None
) -> Iterator[Batch]:
    """Let all calls of the block be one batch; they are one transaction: all of them, or none.

    A callback is called when all jobs of the batch have ended, in one transaction with that finding, as it is written.

    Parameters:
        name: for people.
        on_success: called once, when all of them have succeeded; if one failed at first, when it did after a retry.
        on_failure: called once, when all of them have ended, and not all have succeeded.
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
    if getattr(task, "is_transactional", False) and task.typing and (takes := getattr(task, "__header__", None)):
        # It raises to whoever wrote it: at the end of the batch nobody could call it, and the batch would stay open.
        takes(*callback.args, **callback.kwargs)
    return storable(dict(callback), name)


@contextmanager
def adding(to: Batch) -> Iterator[None]:
    """See ``Batch.adding``."""
    using = str(to._state.db)
    run = current_run()
    with transaction.atomic(using=using):
        # What the body had called after its commit comes too late for that.
        if run is None or run.job.batch_id != to.pk or (run.is_atomic and run.slot.phase != BODY):
            # Race: whoever closes it holds this lock. As long as a job of it runs nobody does.
            open_ones = Batch.objects.using(using).select_for_update().filter(pk=to.pk, ended_at=None)
            if not open_ones.exists():
                raise ValueError(f"the batch {to} has ended: make another one")
        elif not run.is_atomic and not transitions.hold(run.job):
            # A zombie, whose batch may have ended without it. An atomic body's calls go with its completion.
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
    """How many of its jobs are in each state; of one that has ended, as they were then."""
    if of.ended_at is not None:
        return dict(of.counts)
    rows = Job.objects.using(of._state.db).filter(batch=of.pk).order_by().values_list("state")
    # All that it needs is in the index.
    return dict(rows.annotate(number=Count("*")))


#: Those whose callback could not be called: when to try again.
_later: dict[uuid.UUID, float] = {}


def close_ended(using: str) -> int:
    """Close the open batches of which no job may run any more, and call what is to be called; returns how many."""
    live = Job.objects.using(using).filter(batch=OuterRef("pk"), state__in=LIVE)
    over = Batch.objects.using(using).filter(~Exists(live), ended_at=None)
    done, now = 0, time.monotonic()
    # They keep no other batch from its end.
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
        # Race: somebody else closes it, or a job of it was retried since, or called another one.
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
            called[name] = {"task": callback["task"], "id": str(result.id)}
        ended = {"ended_at": Now(), "counts": found.counts, "called": called}
        # Once: a batch that a retry opened again ends again.
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
    """Open the batches of jobs that run again. Whoever closes one looks at its jobs, and waits for none."""
    Batch.objects.using(using).filter(pk__in=jobs.filter(batch__isnull=False).values("batch")).update(ended_at=None)


def lose(jobs: QuerySet[Job], using: str) -> None:
    """The jobs are deleted. Nobody can retry what is gone: its batch must not seem to have succeeded."""
    lost = jobs.filter(state__in=UNSUCCESSFUL, batch__isnull=False).values("batch")
    Batch.objects.using(using).filter(pk__in=lost, on_success__isnull=False).update(on_success=None)


def disown(using: str) -> None:
    """The callback of a batch that ends so would be a new job."""
    Batch.objects.using(using).filter(ended_at=None).update(on_success=None, on_failure=None)


def prune(using: str) -> None:
    """Forget batches whose jobs are gone."""
    of_it = Job.objects.using(using).filter(batch=OuterRef("pk"))
    Batch.objects.using(using).filter(~Exists(of_it), ended_at__lt=now_plus(-KEPT))._raw_delete(using)
