"""Run the body of a job with its real arguments, and roll everything back.

The body and the completion of a job are one transaction. So this shows what a run would do up to its commit.
"""

from __future__ import annotations

import threading
import traceback
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from celery.exceptions import Ignore, Retry
from django.db import Error, connections, transaction
from django.db.models import F
from django.db.models.functions import Now
from django.utils.translation import gettext

from jobs import extensions
from jobs.calling import outbox, request
from jobs.conf import import_tasks, is_ours
from jobs.contrib.isolation.isolation import stopped
from jobs.contrib.redaction.display import shown
from jobs.contrib.rehearsal.watching import Watch
from jobs.errors import Busy, NotIsolated, Snooze
from jobs.execution import pipeline, tracer
from jobs.lifecycle.run import NotHere, Run, current
from jobs.models import Job, Node, State
from jobs.models.values import decoded, safe_repr
from jobs.store import databases

#: Return values for stopped effects that need not fail: a mail counts as sent, a cache write as done.
GOES_ON = {"mail": 1, "cache": True}


class Refused(Exception):
    """The job cannot be rehearsed. The message says why, in the reader's language."""


class _Slot:
    """Stands in for a worker's slot: it accepts what the body reports of its progress, and keeps nothing."""

    index = None

    def enter(self, phase: int) -> None: ...


class _RollBack(Exception):
    pass


def rehearse(key: uuid.UUID, app: Any) -> dict[str, Any]:
    """What the body of this job would do now, as JSON data; everything that it did is rolled back.

    Returns:
        ``outcome`` (``succeeds``, ``fails``, ``retries``, ``snoozes`` or ``cancels``), ``result`` or ``error``,
        ``tables`` and ``rows``, ``jobs``, ``events``, ``tried`` (effects outside of databases, which were stopped),
        ``on_commit``, ``notes``.

    Raises:
        Refused: there is no such job, or its body cannot be rehearsed.
    """
    job: Any = databases.first(Job.objects.filter(pk=key))
    if job is None:
        raise Refused(gettext("There is no job %(id)s.") % {"id": key})
    task = _task_of(job, app)
    using = str(job._state.db)
    watch, calls, tried, found = Watch(), list[Job](), list[dict[str, Any]](), dict[str, Any]()

    def stand_in(kind: str, what: str) -> Any:
        tried.append({"kind": kind, "what": what, "stopped": kind not in GOES_ON})
        if kind in GOES_ON:
            return GOES_ON[kind]
        raise NotIsolated(f"{what} was stopped: this run only shows what a real one would do")

    thread = threading.get_ident()

    def called(call: Job) -> None:
        # Calls in other threads of this process are not the body's.
        if threading.get_ident() == thread:
            calls.append(call)

    outbox.watchers.append(called)
    try:
        with suppress(_RollBack), _rolled_back(using):
            run = _begin(task, job.pk, using, app)
            begun = len(connections[using].run_on_commit)
            events = _last_event(using)
            with stopped(stand_in), watch.watching():
                found |= _go(run)
            hooks = [hook[1] for hook in connections[using].run_on_commit[begun:]]
            found["on_commit"] = [_name(hook) for hook in hooks if not isinstance(hook, outbox.AfterCommit)]
            found["events"] = _new_events(using, job.pk, events)
            raise _RollBack
    finally:
        outbox.watchers.remove(called)
    seen = shown(job)
    return _blanked(
        seen,
        {
            "id": str(job.pk),
            "task": job.task,
            **found,
            "tables": watch.table_counts(),
            "rows": watch.rows,
            "jobs": [_call(each) for each in calls],
            "tried": tried,
            "notes": list(_notes(job, task)),
        },
    )


def _task_of(job: Any, app: Any) -> Any:
    if job.task not in app.tasks:
        import_tasks(app)
    task = app.tasks.get(job.task)
    if says := refusal(job, task):
        raise Refused(says)
    return task


def refusal(job: Any, task: Any) -> str:
    """Why the job cannot be rehearsed; empty if it can."""
    if not is_ours(task):
        return gettext("The task %(task)s is not known here, or is no transactional one.") % {"task": job.task}
    if getattr(task, "durable", False):
        return gettext("A durable task commits after each step: nothing would roll back.")
    if task.is_async:
        return gettext("An async body has no transaction while it awaits: nothing would roll back.")
    if not task.atomic:
        return gettext("The task has atomic=False, and commits by itself: nothing would roll back.")
    return gettext("The job runs at the moment; try when it has ended.") if job.state == State.RUNNING else ""


def leaves(job: Any) -> Iterator[Any]:
    """The arguments of a job, and the values in them."""
    left = [decoded(job.args), decoded(job.kwargs)]
    while left:
        each = left.pop()
        if isinstance(each, dict | list):
            left += each.values() if isinstance(each, dict) else each
        else:
            yield each


@contextmanager
def _rolled_back(using: str) -> Iterator[None]:
    """A transaction in each database, the job's own first; the exception that ends the block rolls back all of them."""
    with ExitStack() as entered:
        for alias in (using, *(each for each in connections if each != using)):
            try:
                entered.enter_context(transaction.atomic(using=alias))
            except Exception:
                # The body cannot use that database (``Watch``).
                if alias == using:
                    raise
        yield


def _begin(task: Any, key: uuid.UUID, using: str, app: Any) -> Run:
    """Make the job a running one for its body. Race: a session that wants the job's row waits until the end."""
    rows = Job.objects.using(using).filter(pk=key)
    node = Node.objects.using(using).create(hostname="rehearsal", pid=0, dead_at=Now())
    changes = {"state": State.RUNNING, "node": node, "lease": F("lease") + 1, "token": 1, "started_at": Now()}
    # Another job may have its key and its slots by now.
    free = dict.fromkeys(("finished_at", "held", "unique_key", "limit_slot", "queue_slot", "waits_for"))
    if not rows.exclude(state=State.RUNNING).update(**changes, **free):
        raise Refused(gettext("The job runs at the moment; try when it has ended."))
    # A body reads the row unredacted.
    job = Job.objects.using(using).get(pk=key)
    run = Run(task, job, using, _Slot())  # type: ignore[arg-type]
    run.request = request.make(job, task, app, "rehearsal")
    return run


def _go(run: Run) -> dict[str, Any]:
    before = current.set(run)
    tracer.enter(run)
    try:
        # A savepoint: even if the body breaks the transaction, the rows can be read afterwards.
        with transaction.atomic(using=run.using):
            run.request.update(request.given(run.job))
            pipeline.call_body(run, decoded(run.job.args), decoded(run.job.kwargs))
            if run.planned:
                raise Retry(exc=None, when=None)
            for look in extensions.through("completing"):
                if (write := look(run)) is not None:
                    write()
            # The constraints that a COMMIT would check.
            connections[run.using].check_constraints()
    except Exception as exc:
        kinds: dict[str, Any] = {"retries": Retry, "snoozes": Snooze | Busy | NotHere, "cancels": Ignore}
        outcome = next((name for name, kind in kinds.items() if isinstance(exc, kind)), "fails")
        cause = exc.exc if isinstance(exc, Retry) and exc.exc is not None else exc
        text = "".join(traceback.format_exception(exc))
        return {"outcome": outcome, "error": {"type": type(cause).__name__, "message": str(cause), "traceback": text}}
    finally:
        tracer.leave(run)
        current.reset(before)
    return {"outcome": "succeeds", "result": safe_repr(run.result)[:1000]}


def _notes(job: Any, task: Any) -> Iterator[str]:
    """How a real run would differ."""
    if "lock" in task.key_templates:
        yield gettext("Its lock was not taken.")
    if "idempotency_key" in task.key_templates:
        yield gettext("Its idempotency key was not looked up: if the marker is there, a run replays its result.")


def _call(job: Any) -> dict[str, Any]:
    seen = shown(job)
    about = {"task": job.task, "queue": job.queue, "state": str(job.state)}
    return about | {"args": seen.args, "kwargs": seen.kwargs}


def _name(hook: Any) -> str:
    hook = getattr(hook, "func", hook)
    return getattr(hook, "__qualname__", safe_repr(hook)[:100])


def _last_event(using: str) -> Any:
    """The id of the last event; None where the extension for events is not installed."""
    if "jobs.events" not in extensions.present():
        return None
    from jobs.events.models import Event

    return Event.objects.using(using).order_by("-pk").values_list("pk", flat=True).first() or 0


def _new_events(using: str, key: uuid.UUID, last: Any) -> list[dict[str, Any]]:
    if last is None:
        return []
    from jobs.contrib.event_operator.redaction import data_of
    from jobs.events.models import Event

    try:
        told = list(Event.objects.using(using).filter(pk__gt=last, job=key).order_by("pk"))
    except Error:
        return []
    return [{"name": each.name, "data": data_of(each)} for each in told]


def _blanked(seen: Any, value: Any) -> Any:
    """The value without those arguments that the project hides."""
    if isinstance(value, str):
        return seen.blanked(value)
    if isinstance(value, list):
        return [_blanked(seen, each) for each in value]
    return {name: _blanked(seen, each) for name, each in value.items()} if isinstance(value, dict) else value
