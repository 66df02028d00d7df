"""Record jobs in the caller's transaction; after its commit, notify the workers and the extensions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from contextvars import ContextVar
from typing import Any

from django.db import Error, IntegrityError, connections, transaction

from jobs import extensions, store
from jobs.conf.syncpoints import reach
from jobs.lifecycle import unique, wakeups
from jobs.models import Job, State
from jobs.models.columns import Part, named
from jobs.store import databases

#: The database that gets all calls of a block as rows, also those of stock tasks.
following: ContextVar[str | None] = ContextVar("jobs.following", default=None)

#: Called with each inserted job, whether or not its transaction commits later.
watchers: list[Callable[[Job], None]] = []


def alias_of(using: str | None = None) -> str:
    """``using``, else the block's database, else the routers' choice; ``ValueError`` if no jobs live there."""
    return databases.job_alias(using or following.get())


def record(jobs: list[Job], using: str, app: Any) -> list[Job]:
    """Insert the jobs into the caller's transaction, with one statement.

    Returns:
        For each call the job that does its work: its own, or with a unique key perhaps an earlier one.
    """
    if not jobs:
        return []
    for change in extensions.through("inserting"):
        change(jobs, using)
    connection: Any = connections[using]
    calls, is_alone = jobs, connection.autocommit and not connection.in_atomic_block
    raw = connection.connection
    # Most calls have no unique key, and no id chosen by the caller.
    write = insert if calls[0].unique_key is None and not calls[0].is_given else _write
    try:
        jobs = write(calls, using)
    except Error as exc:
        if not is_alone or not databases.is_lost(exc, using, raw):
            raise
        # A process without requests (beat, a listener) keeps a dead connection for ever. The id tells whether the row
        # was inserted, and only the answer was lost.
        databases.drop(using)
        # A frozen signature may have been called before, so the time of the call has to match as well.
        rows = Job.objects.using(using).filter(pk=calls[0].pk, made_at=calls[0].made_at)
        is_written = calls[0].unique_key is None and rows.exists()
        jobs = calls if is_written else write(calls, using)
    new = [job for job, call in zip(jobs, calls, strict=True) if job is call]
    for watch in watchers:
        for job in new:
            watch(job)
    hook = hook_of(connection)
    if hook is None:
        for committed in extensions.through("committed"):
            for job in new:
                committed(job, app)
        return jobs
    hook.queues.extend(job.queue for job in new if job.state == State.READY)
    if any(job.is_awaited for job in new):
        hook.recorded.extend((app, job) for job in new)
    if not connection.in_atomic_block:
        hook()
    return jobs


def _write(calls: list[Job], using: str) -> list[Job]:
    call = calls[0]
    into = insert if call.unique_key is None else _insert_unique
    # Race: a worker would claim the job before it is withdrawn.
    with transaction.atomic(using=using) if call.is_given and store.of(using).is_divided else nullcontext():
        jobs = into(calls, using)
        # No unique index covers both live and ended jobs, so a job with this id may have ended already.
        is_taken = call.is_given and jobs[0] is call and store.of(using).withdraw(call.pk)
    if is_taken:
        if not call.is_frozen:
            raise IntegrityError(f"there is a job with the id {call.pk} already, and it has ended")
        call.take_own_id()
        jobs = into(calls, using)
    return jobs


def _insert_unique(calls: list[Job], using: str) -> list[Job]:
    """Insert the jobs that are not there already; returns for each call the job that does its work."""
    jobs = unique.insert(calls, using, store.of(using).batch_size)
    for place, (job, call) in enumerate(zip(jobs, calls, strict=True)):
        for stands_in in extensions.through("taken") if job is not call else ():
            jobs[place] = stands_in(call, job, using) or job
    return jobs


# The INSERT names only the columns that the call set; the database fills in the rest.

#: Columns that are written if they are not empty.
_SAID = tuple(name for name in named(Part.SAID) if name not in ("priority", "state", "run_at"))


def insert(jobs: list[Job], using: str) -> list[Job]:
    """Insert jobs whose keys, if they have any, are not looked at."""
    said: list[dict[str, Any]] = []
    for values in (job.__dict__ for job in jobs):
        said.append({name: values[name] for name in _SAID if values[name]})
        if values["priority"] is not None:
            # Also 0, which comes first on some brokers.
            said[-1]["priority"] = values["priority"]
        if values["state"] != State.READY:
            said[-1] |= {"state": values["state"], "run_at": values["run_at"]}
    at = store.of(using)
    computed = any(hasattr(value, "resolve_expression") for values in said for value in values.values())
    # Not plain: the database's clock computes a time; or an eta passed while the calls were made.
    is_plain = not computed and len({job.state for job in jobs}) == 1
    # A frozen signature may be called twice. Then a row with its id is there already.
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
    return jobs


# After the commit


class AfterCommit:
    """The on-commit hook of one savepoint level: it notifies, tells the extensions, and never raises."""

    def __init__(self, using: str) -> None:
        # Django logs this name if the hook raises.
        self.__qualname__ = "jobs.calling.outbox.AfterCommit"
        self.using = using
        self.queues: list[str] = []
        self.recorded: list[tuple[Any, Job]] = []

    def __call__(self) -> None:
        reach("before_notify")
        wakeups.notify(self.using, self.queues)
        for app, job in self.recorded:
            job.forget_computed()
            for committed in extensions.through("committed"):
                committed(job, app)


def hook_of(connection: Any) -> AfterCommit | None:
    """Register the hook for the current savepoint level, and return it; None if no commit will be reported to us.

    A hook is dropped with the savepoints that were open when it was registered. If an inner block rolls back, its
    notification is not needed; if a notification is lost, a poll finds the job.
    """
    if not connection.in_atomic_block:
        # Autocommit: the INSERT is the commit. Autocommit off: only the caller knows, and a poll finds the job.
        return AfterCommit(connection.alias) if connection.get_autocommit() else None
    if connection.run_on_commit:
        sids, function = connection.run_on_commit[-1][:2]
        if isinstance(function, AfterCommit) and sids == set(connection.savepoint_ids):
            return function
    hook = AfterCommit(connection.alias)
    connection.on_commit(hook, robust=True)
    return hook
