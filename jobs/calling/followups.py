"""What follows a job: links, the next step of a chain, the body of a chord, a task that replaces it.

Celery sends them after the task has returned: after the commit, so that a kill loses them. Here they are rows of the
transaction that completes the job. What waits for a failure (errbacks, a chord, the rest of a chain) hears of it by a
job of its own, ``jobs.ended``, which ``lifecycle`` writes in the transaction that ends the job, whoever ends it.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import celery.exceptions
from celery import Celery, states
from celery._state import pop_current_task, push_current_task
from celery.app.task import Context
from celery.canvas import group, signature
from celery.exceptions import TaskPredicate
from celery.utils.functional import maybe_list
from celery.utils.nodenames import gethostname
from django.db import transaction
from kombu.utils.uuid import uuid

from jobs import errors
from jobs.calling import chords, outbox, request
from jobs.conf import has_results_elsewhere, reads_rows
from jobs.database import databases
from jobs.errors import Snooze, UniqueTaken, for_celery
from jobs.lifecycle import completion, isolation, transitions
from jobs.lifecycle.run import Run, current_job
from jobs.models import ENDED, Job, State
from jobs.models.values import decoded, jsonable, parse_uuid, storable

#: The modules in which an exception's class is looked up if the row holds only its name: no body raised it.
_MODULES = (builtins, celery.exceptions, errors)
#: Options of a call that are live objects, which no row can keep.
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
            completion.owned(job).update(options={**job.options, "replaced": True})
            # Celery gave it this job's id, and moved onto it what should follow this job.
            run.replacement.apply_async()
            return
        options: dict[str, Any] = {"parent_id": given.id, "root_id": given.root_id or given.id}
        if app.conf.task_inherit_parent_priority and job.priority is not None:
            options["priority"] = job.priority
        callbacks = [signature(callback, app=app) for callback in maybe_list(given.callbacks) or ()]
        alone = [each for each in callbacks if not isinstance(each, group)]
        if len(alone) > 1:
            callbacks = [each for each in callbacks if isinstance(each, group)] + [group(alone, app=app)]
        for callback in callbacks:
            callback.apply_async((run.result,), **options)
        if chain := given.chain:
            signature(chain[-1], app=app).apply_async((run.result,), chain=chain[:-1], **options)
        if chord := given.chord:
            result = jsonable(run.result, "the result")
            if not chords.count(app, chord, given.group, given.id, run.using, result):
                # The project's own result backend counts the chord.
                transitions.announce(job, is_called=True)
        if "replaced_task_nesting" in job.options and (first := parse_uuid(job.task_id)) not in (None, job.pk):
            Job.objects.using(run.using).filter(pk=first).update(result=jsonable(run.result, "the result"))


def forget(run: Run) -> None:
    """Celery's tracer must not send once more what is written already."""
    if (given := run.request) is None:
        return
    given.callbacks = given.chain = given.errbacks = given.chord = None


def tell_of(app: Celery, using: str, job_id: str, lease: int) -> None:
    """Tell those who wait for a job that it has ended, unless somebody runs it again."""
    job = Job.objects.using(using).filter(pk=job_id, lease=lease, state__in=ENDED).first()
    if job is not None:
        tell(app, job)


def tell(app: Celery, job: Job) -> None:
    """Tell all who wait for the end of a job, and the result backend: what Celery does after the task."""
    task = app.tasks.get(job.task)
    backend = app.backend if task is None else task.backend
    given = {**request.make(job, task, app, gethostname()), **request.embedded(job.options)}
    context = Context(given, called_directly=False, jobs_run=False)
    is_kept = not context.ignore_result
    with calls_are_rows(str(job._state.db)), _as_if_in(task, context):
        if job.state == State.SUCCEEDED:
            context.callbacks = context.chain = None
            backend.mark_as_done(job.task_id, decoded(job.result), context, is_kept)
            return
        error, is_failure = job.error or {}, job.state == State.FAILED
        state = states.FAILURE if is_failure else states.REVOKED
        exc = exception_of(error, backend) if is_failure else celery.exceptions.TaskRevokedError(error.get("message"))
        # Only a body leaves a traceback. Celery has then stored the exception itself. A body that ends itself
        # (``Ignore``, ``Cancel``) has not failed, so its errbacks are not called.
        by_body = bool(error.get("traceback"))
        chain, context.chain = context.chain, None
        calls_errbacks = is_failure or not by_body
        kept = is_kept and not by_body and has_results_elsewhere(job.task, job.options)
        backend.mark_as_failure(job.task_id, exc, error.get("traceback"), context, kept, calls_errbacks, state)
        backend._fail_chain(chain, exc, error.get("traceback"), is_kept, state)


@contextmanager
def _as_if_in(task: Any, context: Context) -> Iterator[None]:
    """What is called is called by the task that has ended, as in Celery's tracer."""
    if task is None:
        yield
        return
    push_current_task(task)
    task.push_request(**vars(context))
    try:
        yield
    finally:
        task.pop_request()
        pop_current_task()


def exception_of(error: Mapping[str, Any], backend: Any) -> Exception:
    """The exception that ended a job, made again from its row as Celery's backends do it."""
    module, name = class_of(error)
    message = decoded(error.get("args", error.get("message")))
    made = backend.exception_to_python({"exc_type": name, "exc_module": module or None, "exc_message": message})
    # An exception that would end the process of the one who waits becomes a failure, as in the worker.
    return for_celery(made)


def class_of(error: Mapping[str, Any]) -> tuple[str, str]:
    """The module and the name of the class of the exception; an empty module if nobody knows it."""
    kind = str(error.get("type") or "Exception")
    module, _, name = str(error.get("class") or "").partition(":")
    if not name:
        known = (each.__name__ for each in _MODULES if isinstance(getattr(each, kind, None), type))
        module, name = next(known, ""), kind
    return module, name


def install(app: Celery) -> None:
    """Let ``app.send_task`` heed transactions; done when the first of our tasks is bound to the app."""
    if "send_task" not in vars(app):
        app.send_task = partial(send, app, app.send_task)


def send(
    app: Celery, original: Callable[..., Any], name: str, args: Any = None, kwargs: Any = None, **options: Any
) -> Any:
    """Stand in for ``app.send_task``: a message among follow-ups leaves after the commit, by a job (``jobs.send``)."""
    using = outbox.following.get()
    if using is None and options.get("chord") and reads_rows(app) and databases.in_transaction(databases.job_alias()):
        # A part of a chord whose rows are not committed yet: it might end before they are.
        using = databases.job_alias()
    if using is None:
        isolation.check("celery", f"the stock task {name}")
        return original(name, args, kwargs, **options)
    task_id = options.get("task_id") or uuid()
    kept = {key: value for key, value in options.items() if value is not None and key not in _LOCAL}
    call = [name, list(args or ()), dict(kwargs or {}), storable({**kept, "task_id": task_id}, "the options")]
    job = current_job()
    queue = job.queue if job else app.conf.task_default_queue
    transitions.add_own("jobs.send", jsonable(call, "the call"), using, queue, job)
    return app.AsyncResult(task_id)


def end_as(task: Any, job_id: str) -> Any:
    """End the task's job as another job ends, which does the same work; come back later if it has not ended."""
    job = Job.objects.using(task.job._state.db).filter(pk=job_id).first()
    if job is None:
        raise UniqueTaken(f"the job {job_id}, which did the work, was deleted")
    job = last_of(job)
    if job is None or job.state not in ENDED:
        raise Snooze(min(60, 0.5 * 1.5 ** min(task.job.snoozes, 12)), f"the job {job_id} does the same work")
    if job.state == State.SUCCEEDED:
        return decoded(job.result)
    exc = exception_of(job.error or {}, task.backend)
    # ``Busy`` and its like would snooze or cancel this job if its body raised them.
    raise RuntimeError(str(exc)) if isinstance(exc, TaskPredicate) else exc


def last_of(job: Job) -> Job | None:
    """The job that replaced this one, if any did; None: it is still to come."""
    if not (isinstance(job.options, dict) and job.options.get("replaced")):
        return job
    return Job.objects.using(job._state.db).filter(pk=job.replay_of).first() if job.replay_of else None


def rename(call: Job, using: str) -> None:
    """Give a replacement a row of its own, and note it in the row that it replaces. Celery knows both by one id."""
    first = Job.objects.using(using).filter(pk=call.pk)
    if first.exists():
        call.take_own_id()
        first.update(replay_of=call.pk)


@contextmanager
def calls_are_rows(using: str) -> Iterator[None]:
    """All calls of the block are rows of this database: of our tasks, and of those whose message has to be sent."""
    with transaction.atomic(using=using, savepoint=False):
        token = outbox.following.set(using)
        try:
            yield
        finally:
            outbox.following.reset(token)
