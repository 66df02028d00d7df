"""What follows a job: links, the next step of a chain, the body of a chord, a task that replaces it.

Celery sends them after the task has returned: after the commit, so that a kill loses them. Here they are rows of the
transaction that completes the job. What waits for a failure (errbacks, a chord, the rest of a chain) is called by a job
of its own, ``jobs.ended``, which is written in the transaction that ends the job, in whatever process that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import celery.exceptions
from celery import Celery, states
from celery._state import pop_current_task, push_current_task
from celery.app.task import Context
from celery.canvas import group, signature
from celery.utils.functional import maybe_list
from celery.utils.nodenames import gethostname
from django.db import DataError, IntegrityError, transaction
from django.db.models import Exists, OuterRef

from jobs.calling import request
from jobs.conf import celery_app, reads_rows
from jobs.contrib.canvas import chords
from jobs.contrib.results.endings import exception_of
from jobs.contrib.stock_calls.sending import add_own, calls_are_rows
from jobs.lifecycle.run import Run
from jobs.models import ENDED, LIVE, Job, State
from jobs.models.values import decoded, jsonable, parse_uuid
from jobs.store.base import owned


def of(run: Run) -> Callable[[], None] | None:
    """The function that writes what follows, for the completion of a run; None: nothing follows."""
    given = run.request
    follows = given.callbacks or given.chain or given.chord or run.replacement is not None
    return partial(write, run) if follows or "replaced_task_nesting" in run.job.options else None


def write(run: Run) -> None:
    """Write what follows a success into the completing transaction.

    Raises:
        TypeError, ValueError: the result cannot be an argument, or a call cannot be kept. The job fails then.
    """
    given, job, app = run.request, run.job, run.task.app
    with calls_are_rows(run.using):
        if run.replacement is not None:
            owned(job).update(options={**job.options, "replaced": True})
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
                announce(job, is_called=True)
        if "replaced_task_nesting" in job.options and (first := parse_uuid(job.task_id)) not in (None, job.pk):
            Job.objects.using(run.using).filter(pk=first).update(result=jsonable(run.result, "the result"))


def awaited(job: Job, error: Mapping[str, Any]) -> Callable[[], None] | None:
    """The function that writes ``jobs.ended``, for the end of a job without success; None: nothing waits for that.

    Errbacks, a chord and the rest of its chain wait for it. So does the result backend, if it is not ours and no body
    has raised: if a body has raised, its run tells the backend.
    """
    # A person may have edited the row by hand.
    options = job.options if isinstance(job.options, dict) else {}
    waits = not {"link_error", "chord", "chain"}.isdisjoint(options)
    is_awaited = waits or (not error["traceback"] and has_results_elsewhere(job.task, options))
    return partial(announce, job) if is_awaited else None


def announce(job: Job, is_called: bool = False) -> None:
    """Add the job that tells of another job's end, in the transaction of that end: no kill can lose it.

    Parameters:
        is_called: it counts as a call by the running job, like all that follows.
    """
    add_own("jobs.ended", [str(job.pk), job.lease], str(job._state.db), job.queue, job, is_called)


def is_untold(using: str) -> Exists:
    """The condition that errbacks and chords are still to be told of a job's end."""
    return Exists(Job.objects.using(using).filter(parent_id=OuterRef("pk"), task="jobs.ended", state__in=LIVE))


def tell_of(app: Celery, using: str, job_id: str, lease: int, only_errbacks: bool) -> None:
    """Call what waits for the end of a job, unless the job was retried since."""
    job = Job.objects.using(using).filter(pk=job_id, lease=lease, state__in=ENDED).first()
    if job is not None:
        tell(app, job, only_errbacks)


def tell(app: Celery, job: Job, only_errbacks: bool = False) -> None:
    """Call all that waits for the end of a job, and tell the result backend: what Celery does after the task."""
    task = app.tasks.get(job.task)
    backend = app.backend if task is None else task.backend
    context = request.make(job, task, app, gethostname())
    context.jobs_run = False
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
        if not only_errbacks:
            backend.mark_as_failure(job.task_id, exc, error.get("traceback"), context, kept, False, state)
            fail_chain(backend, chain, exc, error.get("traceback"), is_kept, state)
        if not calls_errbacks:
            return
        context.chord = None
        try:
            with transaction.atomic(using=job._state.db):
                backend.mark_as_failure(job.task_id, exc, error.get("traceback"), context, False, True, state)
        except (TypeError, ValueError, LookupError, IntegrityError, DataError):
            if only_errbacks:
                raise
            # An errback cannot be called. The chord and the rest of the chain were told before it.
            add_own("jobs.ended", [str(job.pk), job.lease, True], str(job._state.db), job.queue, job)


@contextmanager
def _as_if_in(task: Any, context: Context) -> Iterator[None]:
    """Calls in the block count as calls by the task that has ended, as in Celery's tracer."""
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


def rename(call: Job, using: str) -> None:
    """Give a replacement a row of its own, and note it in the row that it replaces. Celery knows both by one id."""
    first = Job.objects.using(using).filter(pk=call.pk)
    if first.exists():
        call.take_own_id()
        first.update(replay_of=call.pk)


def has_results_elsewhere(task: str, options: Mapping[str, Any]) -> bool:
    """Whether results are kept by a backend that does not read the rows, and this call does not ignore its result."""
    app = celery_app()
    if app is None or app.conf.result_backend in (None, "", "disabled", "disabled://") or reads_rows(app):
        return False
    return not options.get("ignore_result", getattr(app.tasks.get(task), "ignore_result", False))


def fail_chain(
    backend: Any, chain: Iterable[Any] | None, exc: Any, traceback: Any, is_kept: bool, state: str = states.FAILURE
) -> None:
    """Tell the result backend that the rest of a chain does not run; before 5.7 it was a part of another method."""
    steps = list(chain or ())
    for step in steps:
        # Celery does not look into a group, whose own id is no part of a chord: its members are.
        whole = signature(step, app=backend.app)
        for end in chords.ends_of(whole):
            if end is not whole and "chord" in end.options:
                context = Context(end)
                context.update(end.options)
                context.id, context.group = end.options.get("task_id"), end.options.get("group_id")
                backend.on_chord_part_return(context, state, exc)
    if (fail := getattr(backend, "_fail_chain", None)) is not None:
        fail(steps, exc, traceback, is_kept, state)
        return
    for step in steps:
        context = Context(step)
        context.update(context.options)
        context.id, context.group = context.options.get("task_id"), context.options.get("group_id")
        if is_kept and context.id:
            backend.store_result(context.id, exc, state, traceback=traceback, request=context)
        if "chord" in context.options:
            backend.on_chord_part_return(context, state, exc)
