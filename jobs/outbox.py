"""Record jobs in the caller's transaction; publish them after its commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import connections, transaction
from django.db.models.functions import Now

from jobs import publisher, signals, tracing, unique
from jobs.models import Job, State

if TYPE_CHECKING:
    from celery import Celery


class PublishAfterCommit:
    """The on-commit hook of one savepoint level: publishes its jobs, tells of them, and never raises."""

    __qualname__ = "jobs.outbox.PublishAfterCommit"

    def __init__(self, using: str) -> None:
        self.using = using
        self.jobs: dict[Celery, list[Job]] = {}
        self.recorded: list[Job] = []

    def __call__(self) -> None:
        for app, jobs in self.jobs.items():
            publisher.publish_inline(jobs, self.using, app)
        for job in self.recorded:
            job.forget_computed()
            tracing.created(job)
            signals.enqueued.tell(job, self.using)


def record(jobs: list[Job], using: str, app: Celery) -> list[Job]:
    """Insert the jobs into the caller's transaction, with one statement.

    Parameters:
        app: the Celery app whose broker they are published to.

    Returns:
        For each call the job that does its work: its own, or with a unique key one that was there already.

    Raises:
        django.db.DatabaseError: as any INSERT. A broker in trouble raises nothing here.
        UniqueBusy: see ``unique.insert``.
    """
    if not jobs:
        return []
    hook = _hook(using)
    will_publish = hook is not None and publisher.may_publish_inline()
    for job in jobs:
        # The happy path writes no second time: the INSERT says that this process publishes.
        job.dispatched_at = Now() if will_publish and job.state == State.READY else None
    calls = jobs
    if jobs[0].unique_key is not None:
        jobs = unique.insert(calls, using, _batch_size(using))
    elif len(jobs) == 1:
        jobs[0].save(force_insert=True, using=using)
    else:
        Job.objects.using(using).bulk_create(jobs, batch_size=_batch_size(using))
    new = [job for job, call in zip(jobs, calls, strict=True) if job is call]
    if hook is None:
        for job in new:
            tracing.created(job)
        return jobs
    if will_publish:
        hook.jobs.setdefault(app, []).extend(job for job in new if job.state == State.READY)
    if signals.enqueued.receivers or any(job.span is not None for job in new):
        hook.recorded.extend(new)
    if not connections[using].in_atomic_block:
        hook()
    return jobs


def _hook(using: str) -> PublishAfterCommit | None:
    """The hook for the current savepoint level, registered; None if nothing tells us of the commit.

    Race with a rollback: a hook belongs to the savepoints that were open when it was registered, and is
    dropped with them. One hook for the whole transaction would be lost with the first inner block that
    rolls back; one per savepoint level is not. The last entry is extended only if it is ours and has
    exactly the current savepoints.
    """
    connection = connections[using]
    if not connection.in_atomic_block:
        # Autocommit: the INSERT is the commit. Autocommit off: only the caller knows, the relay publishes.
        return PublishAfterCommit(using) if connection.get_autocommit() else None
    if connection.run_on_commit:
        sids, function = connection.run_on_commit[-1][:2]
        if isinstance(function, PublishAfterCommit) and sids == set(connection.savepoint_ids):
            return function
    hook = PublishAfterCommit(using)
    transaction.on_commit(hook, using=using, robust=True)
    return hook


def _batch_size(using: str) -> int | None:
    connection = connections[using]
    limit = connection.features.max_query_params
    if limit is None and connection.settings_dict["OPTIONS"].get("server_side_binding"):
        limit = 65_535
    return None if limit is None else max(1, limit // len(Job._meta.concrete_fields))
