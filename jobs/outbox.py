"""Record jobs in the caller's transaction; ring after its commit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from celery import signals as celery_signals
from django.db import connections, transaction

from jobs import claims, request, ring, signals, tracing, unique
from jobs.models import Job, State
from jobs.syncpoints import reach

if TYPE_CHECKING:
    from celery import Celery


class AfterCommit:
    """The on-commit hook of one savepoint level: rings for its queues, tells of its jobs, and never raises."""

    def __init__(self, using: str) -> None:
        # Django names a hook that raised.
        self.__qualname__ = "jobs.outbox.AfterCommit"
        self.using = using
        self.queues: set[str] = set()
        self.recorded: list[tuple[Celery, Job]] = []

    def __call__(self) -> None:
        reach("before_ring")
        ring.ring(self.using, self.queues)
        for app, job in self.recorded:
            job.forget_computed()
            tracing.created(job)
            signals.enqueued.tell(job, self.using)
            _tell_celery(app, job)


def record(jobs: list[Job], using: str, app: Celery) -> list[Job]:
    """Insert the jobs into the caller's transaction, with one statement.

    Returns:
        For each call the job that does its work: its own, or with a unique key one that was there already.

    Raises:
        django.db.DatabaseError: as any INSERT.
        UniqueBusy: see ``unique.insert``.
    """
    if not jobs:
        return []
    calls = jobs
    if jobs[0].unique_key is not None:
        jobs = unique.insert(calls, using, _batch_size(using))
    else:
        _insert(jobs, using)
    hook = _hook(using)
    new = [job for job, call in zip(jobs, calls, strict=True) if job is call] if jobs is not calls else jobs
    if hook is None:
        for job in new:
            tracing.created(job)
        return jobs
    hook.queues.update(job.queue for job in new if job.state == State.READY)
    if (
        signals.enqueued.receivers
        or celery_signals.after_task_publish.receivers
        or any(job.span is not None for job in new)
    ):
        hook.recorded.extend((app, job) for job in new)
    if not connections[using].in_atomic_block:
        hook()
    return jobs


def _tell_celery(app: Celery, job: Job) -> None:
    if celery_signals.after_task_publish.receivers:
        options = job.options
        with tracing.apart():
            celery_signals.after_task_publish.send(
                sender=job.task,
                body=(job.args, job.kwargs, request.embedded(options)),
                headers={**request.headers_of(job, app, options), **job.headers},
                exchange=options.get("exchange", ""),
                routing_key=options.get("routing_key", job.queue),
            )


def _hook(using: str) -> AfterCommit | None:
    """The hook for the current savepoint level, registered; None if nothing tells us of the commit.

    A hook goes with the savepoints that were open when it was registered. If an inner block rolls back, its ring is not
    needed; were a ring lost, a poll would find the job.
    """
    connection = connections[using]
    if not connection.in_atomic_block:
        # Autocommit: the INSERT is the commit. Autocommit off: only the caller knows, and a poll finds the job.
        return AfterCommit(using) if connection.get_autocommit() else None
    if connection.run_on_commit:
        sids, function = connection.run_on_commit[-1][:2]
        if isinstance(function, AfterCommit) and sids == set(connection.savepoint_ids):
            return function
    hook = AfterCommit(using)
    transaction.on_commit(hook, using=using, robust=True)
    return hook


# The INSERT names only what the call said; the database makes the rest.

#: The columns that a call may say, beside those that every call says.
_SAID = "kwargs options priority rank retries parent_id root made_at expires_at marker_key state run_at".split()
_ALWAYS = ("id", "task", "queue", "args")
_JSON = frozenset({"args", "kwargs", "options"})


def _insert(jobs: list[Job], using: str) -> None:
    connection = connections[using]
    said = [_said(job) for job in jobs]
    computed = any(hasattr(value, "resolve_expression") for values in said for value in values.values())
    if computed or len({job.state for job in jobs}) > 1:
        # The database's clock says when; or an eta came while the calls were made.
        if len(jobs) == 1:
            jobs[0].save(force_insert=True, using=using)
        else:
            Job.objects.using(using).bulk_create(jobs, batch_size=_batch_size(using))
        return
    if len(jobs) == 1:
        [values] = said
        columns = (*_ALWAYS, *values)
        _execute(connection, using, _statement(columns), _values(jobs[0], columns, connection))
    elif connection.vendor == "postgresql":
        _copy(jobs, {name for values in said for name in values}, connection)
    else:
        Job.objects.using(using).bulk_create(jobs, batch_size=_batch_size(using))
    for job in jobs:
        job._state.adding, job._state.db = False, using


#: How many calls over one connection make it worth while to prepare the INSERT.
_OFTEN = 5


def _execute(connection: Any, using: str, sql: str, values: list[Any]) -> None:
    raw = connection.connection
    calls = raw is not None and connection.vendor == "postgresql" and getattr(raw, "_jobs_calls", 0)
    # Django's own cursor where somebody watches what it executes.
    if calls and calls >= _OFTEN and not connection.queries_logged and not connection.execute_wrappers:
        connection.validate_no_broken_transaction()
        claims.session_of(using).execute(sql, values)
        return
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
    if connection.vendor == "postgresql":
        connection.connection._jobs_calls = getattr(connection.connection, "_jobs_calls", 0) + 1


def _said(job: Job) -> dict[str, Any]:
    values = job.__dict__
    said = {name: values[name] for name in _SAID[:10] if values[name]}
    if values["priority"] is not None:
        # Also 0, which is the first on some brokers.
        said["priority"] = values["priority"]
    if values["state"] != State.READY:
        said |= {"state": values["state"], "run_at": values["run_at"]}
    return said


@lru_cache(maxsize=500)
def _statement(columns: tuple[str, ...]) -> str:
    marks = ", ".join(["%s"] * len(columns))
    return f"INSERT INTO jobs_job ({', '.join(columns)}) VALUES ({marks})"


def _values(job: Job, columns: Iterable[str], connection: Any) -> list[Any]:
    values = []
    for name in columns:
        value = job.__dict__[name]
        if name in _JSON:
            value = json.dumps(value)
        elif name in ("id", "parent_id", "root") and value is not None and connection.vendor != "postgresql":
            value = _FIELDS[name].get_db_prep_save(value, connection)
        elif name.endswith("_at"):
            value = connection.ops.adapt_datetimefield_value(value)
        values.append(value)
    return values


_FIELDS: dict[str, Any] = {field.attname: field for field in Job._meta.concrete_fields}

_ESCAPED = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def _copy(jobs: Sequence[Job], said: set[str], connection: Any) -> None:
    """COPY is what PostgreSQL takes fastest. A value that one call says and another does not has to be its default."""
    columns = (*_ALWAYS, *(name for name in _SAID if name in said))
    with connection.cursor() as cursor, cursor.copy(f"COPY jobs_job ({', '.join(columns)}) FROM STDIN") as copy:
        for start in range(0, len(jobs), 1000):
            lines = ("\t".join(_texts(job, columns)) for job in jobs[start : start + 1000])
            copy.write("".join(f"{line}\n" for line in lines))


def _texts(job: Job, columns: Iterable[str]) -> Iterable[str]:
    for name in columns:
        value = job.__dict__[name]
        if name in _JSON and (value or name != "options"):
            yield json.dumps(value).replace("\\", "\\\\")
        elif value is None or name == "options":
            yield "\\N"
        else:
            yield str(value).translate(_ESCAPED)


def _batch_size(using: str) -> int | None:
    connection = connections[using]
    limit = connection.features.max_query_params
    if limit is None and connection.settings_dict["OPTIONS"].get("server_side_binding"):
        limit = 65_535
    return None if limit is None else max(1, limit // len(Job._meta.concrete_fields))
