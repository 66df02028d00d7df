"""What follows a job: links, the next step of a chain, the body of a chord, a task that replaces it.

Celery sends them after the task has returned: after the commit, so that a kill loses them. Here they are rows of the
transaction that completes the job. What waits for a failure (errbacks, a chord, the rest of a chain) hears of it by a
job of its own, ``jobs.ended``, which ``lifecycle`` writes in the transaction that ends the job, whoever ends it.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery, states
from celery.app.task import Context
from celery.canvas import signature
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult
from celery.utils.functional import maybe_list
from celery.utils.nodenames import gethostname
from django.db import transaction
from kombu.utils.uuid import uuid

from jobs import chords, claims, outbox, request
from jobs.arguments import jsonable, parse_uuid, storable
from jobs.fields import uuid7
from jobs.models import Job, State
from jobs.project import celery_app
from jobs.run import Run, current_job

#: Of a call: how it would travel, and what only an open producer or router is good for.
_LOCAL = ("producer", "connection", "publisher", "router", "result_cls", "task_type", "add_to_parent")


def any_of(run: Run) -> bool:
    """Whether more than the completion is to be written when the body has returned."""
    given = run.request
    follows = given.callbacks or given.chain or given.chord or run.replacement is not None
    return bool(follows or "replaced_task_nesting" in run.job.options)


def write(run: Run) -> None:
    """Write what follows a success into the completing transaction.

    Raises:
        TypeError, ValueError: the result cannot be an argument, or a call cannot be kept. The job fails then.
    """
    given, job, app = run.request, run.job, run.task.app
    with calls_are_rows(run.using):
        if run.replacement is not None:
            claims.owned(job).update(options={**job.options, "replaced": True})
            # It has this job's id for Celery, and what should follow this job follows it now.
            run.replacement.apply_async()
            return
        options: dict[str, Any] = {"parent_id": given.id, "root_id": given.root_id or given.id}
        if app.conf.task_inherit_parent_priority and job.priority is not None:
            options["priority"] = job.priority
        for callback in maybe_list(given.callbacks) or ():
            signature(callback, app=app).apply_async((run.result,), **options)
        if chain := given.chain:
            signature(chain[-1], app=app).apply_async((run.result,), chain=chain[:-1], **options)
        if chord := given.chord:
            result = jsonable(run.result, "the result")
            run.is_counted = chords.count(app, chord, given.group, given.id, run.using, result)
        if "replaced_task_nesting" in job.options and (first := parse_uuid(job.task_id)) not in (None, job.pk):
            Job.objects.using(run.using).filter(pk=first).update(result=jsonable(run.result, "the result"))


def forget(run: Run) -> None:
    """What is written already, or will be by ``jobs.ended``, Celery's tracer must not send once more."""
    given = run.request
    given.callbacks = given.chain = given.errbacks = None
    if run.is_counted or run.job.state != State.SUCCEEDED:
        given.chord = None


def tell(app: Celery, job: Job) -> None:
    """Tell all who wait for a job that failed or was cancelled: what Celery does after the task has raised."""
    task = app.tasks.get(job.task)
    context = Context(request.make(job, task, app, gethostname()))
    error = job.error or {}
    failed, kind, message = job.state == State.FAILED, error.get("type", ""), error.get("message", "")
    backend = app.backend if task is None else task.backend
    exc = backend.exception_to_python(described(kind, message)) if failed else TaskRevokedError(message)
    with calls_are_rows(job._state.db):
        backend.mark_as_failure(
            job.task_id,
            exc,
            error.get("traceback"),
            request=context,
            store_result=not context.ignore_result or getattr(task, "store_errors_even_if_ignored", False),
            # A body that ends itself (``Ignore``, ``Cancel``) is no failure to anybody; only then is there a traceback.
            call_errbacks=failed or not error.get("traceback"),
            state=states.FAILURE if failed else states.REVOKED,
        )


def described(kind: str, message: str) -> dict[str, Any]:
    """An error as Celery's backends keep it."""
    return {"exc_type": kind, "exc_message": [message], "exc_module": "builtins" if hasattr(builtins, kind) else None}


def send(original: Callable[..., AsyncResult], name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
    """``app.send_task``: a message among follow-ups leaves after the commit, by a job of its own (``jobs.send``)."""
    if (using := outbox.following.get()) is None:
        return original(name, args, kwargs, **options)
    task_id = options.setdefault("task_id", None) or uuid()
    kept = {key: value for key, value in options.items() if value is not None and key not in _LOCAL}
    job = current_job()
    call = [name, list(args or ()), dict(kwargs or {}), storable({**kept, "task_id": task_id}, "the options")]
    Job.objects.using(using).create(
        task="jobs.send",
        args=jsonable(call, "the call"),
        queue=job.queue if job else celery_app().conf.task_default_queue,
        parent_id=job and job.pk,
        root=job and job.root_id,
    )
    return AsyncResult(task_id)


def rename(call: Job, using: str) -> None:
    """A task that replaces another has its id for Celery, but the row of that id is there. The two are tied here."""
    new = uuid7()
    if Job.objects.using(using).filter(pk=call.pk).update(replay_of=new):
        call.options.setdefault("task_id", str(call.pk))
        call.id = new


@contextmanager
def calls_are_rows(using: str) -> Iterator[None]:
    """All calls of the block are rows of this database: of our tasks, and of those whose message has to be sent."""
    with transaction.atomic(using=using, savepoint=False):
        token = outbox.following.set(using)
        try:
            yield
        finally:
            outbox.following.reset(token)
