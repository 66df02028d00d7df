"""Record jobs in the caller's transaction."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from celery import Celery
from celery import signals as celery_signals
from django.db import Error, connections

from jobs import extensions, signals, store
from jobs.calling.after_commit import hook_of
from jobs.lifecycle import unique
from jobs.models import Job, State
from jobs.models.columns import Part, named
from jobs.store import databases

#: The database to which the calls of a block go as rows, also those of stock tasks (``jobs.calling.following``).
following: ContextVar[str | None] = ContextVar("jobs.following", default=None)

#: What makes a call a part of something greater.
_IN_CANVAS = frozenset({"link", "link_error", "chain", "chord", "group_id"})

#: Called with each job that was inserted, whether or not its transaction commits later.
watchers: list[Callable[[Job], None]] = []


def alias_of(using: str | None = None) -> str:
    """``using``, else the database of the block, else the routers' one; ``ValueError`` if no jobs live there."""
    return databases.job_alias(using or following.get())


def record(jobs: list[Job], using: str, app: Celery) -> list[Job]:
    """Insert the jobs into the caller's transaction, with one statement.

    Returns:
        For each call the job that does its work: its own, or with a unique key one that was there already.
    """
    if not jobs:
        return []
    for change in extensions.through("inserting"):
        change(jobs, using)
    connection: Any = connections[using]
    calls, is_alone = jobs, connection.autocommit and not connection.in_atomic_block
    try:
        jobs = _write(calls, using)
    except Error as exc:
        if not is_alone or not databases.is_lost(exc, using):
            raise
        # A process without requests (beat, a listener) keeps a dead connection for ever. The id tells whether it
        # was the INSERT's answer that got lost.
        databases.drop(using)
        # A frozen signature may have been called before, so the time of the call has to match as well.
        rows = Job.objects.using(using).filter(pk=calls[0].pk, made_at=calls[0].made_at)
        is_written = calls[0].unique_key is None and rows.exists()
        jobs = calls if is_written else _write(calls, using)
    new = [job for job, call in zip(jobs, calls, strict=True) if job is call]
    for watch in watchers:
        for job in new:
            watch(job)
    hook = hook_of(connection)
    if hook is None:
        for committed in extensions.through("committed"):
            for job in new:
                committed(job)
        return jobs
    hook.queues.update(job.queue for job in new if job.state == State.READY)
    is_heard = signals.enqueued.receivers or celery_signals.after_task_publish.receivers
    if is_heard or any(job.is_awaited for job in new):
        hook.recorded.extend((app, job) for job in new)
    if not connection.in_atomic_block:
        hook()
    return jobs


def _write(calls: list[Job], using: str) -> list[Job]:
    """Insert what is not there already; returns for each call the job that does its work."""
    if calls[0].unique_key is None:
        _insert(calls, using)
        return calls
    jobs = unique.insert(calls, using, store.of(using).batch_size)
    for place, (job, call) in enumerate(zip(jobs, calls, strict=True)):
        if job is not call and (following.get() is not None or not _IN_CANVAS.isdisjoint(call.options)):
            # Its followers, and whoever waits for its id, would never hear that the other job has ended.
            jobs[place] = unique.stand_in(call, job)
            _insert([call], using)
    return jobs


# The INSERT names only what the call said; the database makes the rest.

#: What a call says if it is not empty.
_SAID = tuple(name for name in named(Part.SAID) if name not in ("priority", "state", "run_at"))


def _insert(jobs: list[Job], using: str) -> None:
    said, at = [_said(job) for job in jobs], store.of(using)
    computed = any(hasattr(value, "resolve_expression") for values in said for value in values.values())
    # The database's clock says when; or an eta came while the calls were made.
    is_plain = not computed and len({job.state for job in jobs}) == 1
    # A frozen signature may be called again. Then there is a row of its id already.
    is_frozen = len(jobs) == 1 and jobs[0].is_frozen
    if len(jobs) == 1 and is_plain:
        columns = (*named(Part.CALL), *said[0])
        if not at.insert(jobs[0], columns, is_frozen):
            jobs[0].take_own_id()
            at.insert(jobs[0], columns, False)
    elif len(jobs) == 1:
        if is_frozen and Job.objects.using(using).filter(pk=jobs[0].pk).exists():
            jobs[0].take_own_id()
        jobs[0].save(force_insert=True, using=using)
    else:
        at.insert_all(jobs, said if is_plain else None)
    for job in jobs:
        job._state.adding, job._state.db = False, using


def _said(job: Job) -> dict[str, Any]:
    values = job.__dict__
    said = {name: values[name] for name in _SAID if values[name]}
    if values["priority"] is not None:
        # Also 0, which is the first on some brokers.
        said["priority"] = values["priority"]
    if values["state"] != State.READY:
        said |= {"state": values["state"], "run_at": values["run_at"]}
    return said
