"""Record jobs in the caller's transaction."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

from celery import Celery
from celery import signals as celery_signals
from django.db import Error, connections

from jobs import extensions, signals
from jobs.calling.after_commit import hook_of
from jobs.database import databases, sessions
from jobs.lifecycle import unique
from jobs.models import ADDED, Job, State

#: The database to which the calls of a block go as rows, also those of stock tasks (``jobs.calling.following``).
following: ContextVar[str | None] = ContextVar("jobs.following", default=None)

#: What makes a call a part of something greater.
_IN_CANVAS = frozenset({"link", "link_error", "chain", "chord", "group_id"})

#: Told of each job when it was inserted, also if its transaction does not commit (``jobs.testing``).
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
        jobs = _write(calls, connection)
    except Error as exc:
        if not is_alone or not databases.is_lost(exc, using):
            raise
        # A process without requests (beat, a listener) keeps a dead connection for ever. The id tells whether it
        # was the INSERT's answer that got lost.
        databases.drop(using)
        # A frozen signature may have been called before, so the time of the call has to match as well.
        rows = Job.objects.using(using).filter(pk=calls[0].pk, made_at=calls[0].made_at)
        is_written = calls[0].unique_key is None and rows.exists()
        jobs = calls if is_written else _write(calls, connection)
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


def _write(calls: list[Job], connection: Any) -> list[Job]:
    """Insert what is not there already; returns for each call the job that does its work."""
    if calls[0].unique_key is None:
        _insert(calls, connection)
        return calls
    jobs = unique.insert(calls, connection.alias, _batch_size(connection))
    for place, (job, call) in enumerate(zip(jobs, calls, strict=True)):
        if job is not call and (following.get() is not None or not _IN_CANVAS.isdisjoint(call.options)):
            # Its followers, and whoever waits for its id, would never hear that the other job has ended.
            jobs[place] = unique.stand_in(call, job)
            _insert([call], connection)
    return jobs


# The INSERT names only what the call said; the database makes the rest.

_ALWAYS = ("id", "task", "queue", "args")
#: What a call may say beside that, and what it says only if it is not the default.
_SAID = (
    "kwargs",
    "options",
    "rank",
    "retries",
    "parent_id",
    "root",
    "made_at",
    "expires_at",
    "marker_key",
    "limit_key",
    *ADDED,
)
_COLUMNS = (*_ALWAYS, *_SAID, "priority", "state", "run_at")
_JSON = frozenset({"args", "kwargs", "options"})
#: How an INSERT begins and ends that does nothing if the row is there.
_IGNORING = {
    "postgresql": ("INSERT", " ON CONFLICT DO NOTHING"),
    "sqlite": ("INSERT OR IGNORE", ""),
    "mysql": ("INSERT IGNORE", ""),
}


def _insert(jobs: list[Job], connection: Any) -> None:
    using = connection.alias
    said = [_said(job) for job in jobs]
    computed = any(hasattr(value, "resolve_expression") for values in said for value in values.values())
    # The database's clock says when; or an eta came while the calls were made.
    is_plain = not computed and len({job.state for job in jobs}) == 1
    # A frozen signature may be called again. Then there is a row of its id already.
    is_frozen = len(jobs) == 1 and jobs[0].is_frozen
    if len(jobs) == 1 and is_plain:
        columns = (*_ALWAYS, *said[0])
        verb, end = _IGNORING[connection.vendor] if is_frozen else ("INSERT", "")
        sql = f"{verb}{_statement(columns)}{end}"
        if not _execute(connection, sql, jobs[0], columns):
            jobs[0].take_own_id()
            _execute(connection, sql, jobs[0], columns)
    elif len(jobs) == 1:
        if is_frozen and Job.objects.using(using).filter(pk=jobs[0].pk).exists():
            jobs[0].take_own_id()
        jobs[0].save(force_insert=True, using=using)
    elif is_plain and connection.vendor == "postgresql":
        _copy(jobs, {name for values in said for name in values}, connection)
    else:
        Job.objects.using(using).bulk_create(jobs, batch_size=_batch_size(connection))
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


@lru_cache(maxsize=500)
def _statement(columns: tuple[str, ...]) -> str:
    return f" INTO jobs_job ({', '.join(columns)}) VALUES ({', '.join(['%s'] * len(columns))})"


#: How many calls over one connection make it worth while to prepare the INSERT.
_OFTEN = 5


def _execute(connection: Any, sql: str, job: Job, columns: Iterable[str]) -> int:
    """How many rows were inserted."""
    values: list[Any] = []
    if connection.vendor == "postgresql":
        values = [_text(name, job.__dict__[name]) for name in columns]
        calls = getattr(connection.connection, "_jobs_calls", 0)
        # Django's own cursor where somebody watches what it executes.
        if calls >= _OFTEN and not connection.queries_logged and not connection.execute_wrappers:
            connection.validate_no_broken_transaction()
            return sessions.session_of(connection.alias).insert(sql, values)
    else:
        fields: dict[str, Any] = {name: Job._meta.get_field(name) for name in columns}
        values = [field.get_db_prep_save(job.__dict__[name], connection) for name, field in fields.items()]
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        done: int = cursor.rowcount
    if connection.vendor == "postgresql":
        connection.connection._jobs_calls = calls + 1
    return done


def _text(name: str, value: Any) -> str | None:
    """A value as PostgreSQL reads it."""
    if name in _JSON:
        return json.dumps(value) if value or name != "options" else None
    return None if value is None else str(value)


_ESCAPED = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def _copy(jobs: Sequence[Job], said: set[str], connection: Any) -> None:
    """COPY is what PostgreSQL takes fastest. A value that one call says and another does not has to be its default."""
    columns = [name for name in _COLUMNS if name in said or name in _ALWAYS]
    with connection.cursor() as cursor, cursor.copy(f"COPY jobs_job ({', '.join(columns)}) FROM STDIN") as copy:
        for start in range(0, len(jobs), 1000):
            rows = (job.__dict__ for job in jobs[start : start + 1000])
            copy.write("".join(["\t".join([_escaped(name, row[name]) for name in columns]) + "\n" for row in rows]))


def _escaped(name: str, value: Any) -> str:
    text = _text(name, value)
    return "\\N" if text is None else text.translate(_ESCAPED)


def _batch_size(connection: Any) -> int | None:
    """Django knows how many values a statement takes on SQLite, and not on PostgreSQL with ``server_side_binding``."""
    is_bound = connection.settings_dict["OPTIONS"].get("server_side_binding")
    return 65_535 // len(Job._meta.concrete_fields) if is_bound else None
