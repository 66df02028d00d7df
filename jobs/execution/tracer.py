"""What Celery's tracer does around a task, step by step for a run: request stack, signals, handlers, log, results.

It stands in for ``celery.app.trace.build_tracer``, which calls the task, and decides its outcome. The outcome of a job
is decided by its row, so here Celery is only told. Two of its steps are left out. What follows the task is written with
the end of the job, and is not sent. And ``worker_deduplicate_successful_tasks`` has nothing to do, because a job that
has succeeded is not claimed again.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Generator
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import signals, states
from celery._state import pop_current_task, push_current_task
from celery.app.trace import LOG_SUCCESS, TraceInfo, get_task_name, info
from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore, Reject, Retry
from celery.utils.saferepr import saferepr
from kombu.exceptions import EncodeError

from jobs.errors import Snooze
from jobs.execution import finish
from jobs.lifecycle.run import Run

#: Celery's own: projects set its level.
celery_logger = logging.getLogger("celery.app.trace")


class NoBackend(DisabledBackend):
    """The result backend without an extension that has one."""

    #: A run tells this backend nothing: its row says what became of it.
    reads_rows = True


def trace(run: Run, call: Generator[float | None, None, Any]) -> Generator[float | None, None, None]:
    """The run, and what Celery is told of it. While it lasts the task is Celery's current one, and has this request.

    Parameters:
        call: the steps in which it runs; they return the result, or raise what else came of it.
    """
    enter(run)
    try:
        try:
            run.result = yield from call
        except Exception as exc:
            tell(run, exc)
        else:
            tell_success(run)
    finally:
        end(run)


def enter(run: Run) -> None:
    """The task is Celery's current one, and has this request, until :func:`leave`."""
    push_current_task(run.task)
    run.task.request_stack.push(run.request)
    run.request.jobs_run = run


def leave(run: Run) -> None:
    pop_current_task()
    run.task.request_stack.pop()
    # Else run and request keep each other, and the job's arguments and result, until the next garbage collection.
    run.request.jobs_run = None


def end(run: Run) -> None:
    """Celery is told what came of it, and leaves the task."""
    task, request = run.task, run.request
    # If there is no state, the process was told to end, or telling Celery failed.
    value = run.told if run.told is not None else run.result
    try:
        about = {"args": request.args, "kwargs": request.kwargs, "retval": value, "state": run.state}
        signals.task_postrun.send(sender=task, task_id=request.id, task=task, **about)
    finally:
        leave(run)
        try:
            if run.tells_backend:
                task.backend.process_cleanup()
            task.app.loader.on_process_cleanup()
        except Exception as exc:
            celery_logger.error("Process cleanup failed: %r", exc, exc_info=True)


def begin(run: Run) -> None:
    """The body comes next. What a handler raises is treated as if the body had raised it."""
    task, request = run.task, run.request
    key, args, kwargs = request.id, request.args, request.kwargs
    signals.task_prerun.send(sender=task, task_id=key, task=task, args=args, kwargs=kwargs)
    try:
        # Where results are read from the rows a run has nothing to tell the result backend.
        run.tells_backend = not getattr(task.backend, "reads_rows", False)
        task.app.loader.on_task_init(key, task)
        if task.track_started and run.tells_backend and not request.ignore_result:
            meta = {"pid": os.getpid(), "hostname": request.hostname}
            task.backend.store_result(key, meta, states.STARTED, request=request)
    except Exception as exc:
        # Not the task's fault: the result backend is away, say.
        pause = min(10.0, 1 + run.job.snoozes / 2)
        raise Snooze(pause, f"Celery did not begin the task: {exc!r}") from exc
    task.before_start(key, args, kwargs)


def tell_success(run: Run) -> None:
    """The job has succeeded, with ``run.result``."""
    task, request, run.state = run.task, run.request, states.SUCCESS
    if run.tells_backend:
        try:
            task.backend.mark_as_done(request.id, run.result, request, not request.ignore_result)
        except EncodeError as exc:
            # The project's own result backend cannot keep what the row keeps.
            tell(run, exc)
            return
    runtime = time.monotonic() - run.entered
    about = request.id, request.args, request.kwargs
    _handle(run, "on_success", run.result, *about)
    signals.task_success.send(sender=task, result=run.result, runtime=runtime)
    if celery_logger.isEnabledFor(logging.INFO):
        shown = {"args": request.argsrepr, "kwargs": request.kwargsrepr, "id": request.id, "runtime": runtime}
        shown["return_value"] = saferepr(run.result, task.resultrepr_maxsize)
        info(LOG_SUCCESS, {"name": get_task_name(request, task.name), **shown})
    _handle(run, "after_return", run.state, run.result, *about, None)


def tell(run: Run, exc: Exception) -> None:
    """The job has not succeeded; in the ``except`` block of the exception that says so."""
    task, request = run.task, run.request
    run.told = exc
    kinds = {Reject: states.REJECTED, Ignore: states.IGNORED, Retry: states.RETRY}
    run.state = next((state for kind, state in kinds.items() if isinstance(exc, kind)), states.FAILURE)
    said = TraceInfo(run.state, exc)
    if run.state == states.IGNORED:
        said.handle_ignore(task, request)
    elif run.state == states.REJECTED:
        said.handle_reject(task, request)
        if not request.ignore_result:
            # The body's Reject(requeue=False). It is Celery's worker that calls this a failure, and not its tracer.
            task.backend.store_result(request.id, exc, states.FAILURE, request=request)
    else:
        said.handle_error_state(task, request, call_errbacks=run.state == states.FAILURE)
        if run.state == states.FAILURE:
            _handle(run, "after_return", run.state, exc, request.id, request.args, request.kwargs, None)


def tell_broken(run: Run, exc: Exception) -> None:
    """Telling failed, because the result backend is away, say. What came of the job stands in its row."""
    request = {name: value for name, value in vars(run.request).items() if name != "jobs_run"}
    about = {"task_id": run.request.id, "args": run.request.args, "kwargs": run.request.kwargs, "request": request}
    einfo = ExceptionInfo((type(exc), exc, exc.__traceback__))
    signals.task_internal_error.send(sender=run.task, exception=exc, traceback=exc.__traceback__, einfo=einfo, **about)


def _handle(run: Run, name: str, *args: Any) -> None:
    """Call a handler of the task. What it raises is logged: what came of the job is written."""
    try:
        getattr(run.task, name)(*args)
    except Exception as exc:
        finish.let_end(exc)
        celery_logger.exception("Task %s[%s] %s handler raised: %r", run.task.name, run.request.id, name, exc)
