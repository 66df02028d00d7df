"""The pipeline of a run, to be read from top to bottom: begin, body in its transaction, completion, finish, tell.

The job was claimed before (``jobs.worker.runner``). A ``Run`` is handed from step to step. A step that ends the run
raises, or returns, what Celery is told (``jobs.execution.tracer``).

The steps are generators. Those of a plain body never yield. Where the steps of an async body (``Task.is_async``) yield,
the caller awaits its coroutine: no thread waits for it, and no transaction is open.
"""

from __future__ import annotations

import inspect
import logging
import os
import random
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

from celery.exceptions import Ignore, Retry, SoftTimeLimitExceeded
from django.db import connections, transaction
from django.db.utils import Error, ProgrammingError

from jobs import extensions, store
from jobs.calling import calls, request
from jobs.conf import sentry
from jobs.conf.logs import log, logger
from jobs.conf.syncpoints import reach
from jobs.errors import LostLease, Replaced
from jobs.execution import finish, tracer
from jobs.idempotency import markers
from jobs.idempotency.keys import fingerprint
from jobs.lifecycle import transitions
from jobs.lifecycle.run import NotHere, Run, current, persistently
from jobs.lifecycle.worker_state import BODY, NAMED
from jobs.models import Job, State
from jobs.models.values import decoded, safe_repr
from jobs.store import databases

#: The longest pauses, in seconds, before a body that met a conflict is run again under the same claim.
RERUNS = (0.02, 0.1, 0.5, 2.0)

#: The steps of a run. They yield None where its coroutine is to be awaited, and then the seconds to wait.
Steps = Generator[float | None, None, Any]


def run(run: Run) -> None:
    """Run a claimed job, whose request was made: ``run.state`` and ``run.told`` say what came of it."""
    if run.task.is_async:
        for run_inline in extensions.through("run_inline"):
            run_inline(run)
        return
    _whole(steps(run))


def steps(run: Run) -> Steps:
    """The same in steps. The caller awaits the coroutine, and sets ``run.body`` and ``run.is_atomic`` accordingly."""
    request = run.request
    try:
        if sentry.MODULE in sys.modules and not run.task.is_async:
            call = sentry.around("_wrap_task_call", run.task, lambda: _whole(_call(run)))
            traced = sentry.around("_wrap_tracer", run.task, lambda *given: _whole(tracer.trace(run, _in_one(call))))
            # The row's arguments and not the request's: what is hidden stays hidden.
            traced(request.id, decoded(run.job.args), decoded(run.job.kwargs), request)
        else:
            yield from tracer.trace(run, _call(run))
        if run.state is None:
            # Else the job would be given back again and again.
            finish.finish(run, RuntimeError("what is wrapped around a run did not call it"), lost=True)
    except Exception as exc:
        finish.let_end(exc)
        log(logging.ERROR, run.job, "ended unexpectedly", "run_broken", exc_info=exc)
        run.told = run.told or exc
        tracer.tell_broken(run, exc)


def _whole(steps: Steps) -> Any:
    """The return value of steps that never yield."""
    try:
        next(steps)
    except StopIteration as end:
        return end.value
    raise RuntimeError("the run of a plain body yielded")


def _in_one(call: Callable[[], Any]) -> Steps:
    yield from ()
    return call()


def _call(run: Run) -> Steps:
    """The run from its beginning to its end; what it returns or raises is what Celery is told."""
    job, request = run.job, run.request
    try:
        try:
            tracer.begin(run)
        except Exception as exc:
            finish.finish(run, exc)
        reach("after_claim")
        with extensions.around("around", run):
            if "v" in job.options and calls.is_newer(job.options):
                finish.finish(run, NotHere("it is of a later release"))
            if logger.isEnabledFor(logging.DEBUG):
                log(logging.DEBUG, job, "started", "started")
            for happened in extensions.through("happened"):
                happened([job], run.using, "started")
            # Code in the body that asks for the current run gets this one.
            before = current.set(run)
            try:
                return (yield from _perform(run) if run.task.holding is None else _holding(run))
            finally:
                current.reset(before)
    except Exception as exc:
        finish.let_end(exc)
        raise
    finally:
        # What follows the job is written with its end: Celery must not send it again.
        request.callbacks = request.errbacks = request.chain = request.chord = None
        if run.afterwards:
            run.end()
        databases.tidy(run.using)


def receive(task: Any, context: Any, args: Any, kwargs: Any) -> Any:
    """A message that no ``delay()`` of ours made. An extension makes a job of it."""
    raise RuntimeError(f"{task.name} was called by name, and nothing here makes a job of a message")


def _holding(run: Run) -> Steps:
    """Hold what the task holds until the run is finished: the next holder sees what it committed."""
    with ExitStack() as held:
        try:
            run.lock_token = held.enter_context(run.task.holding(run))
        except BaseException as exc:
            return finish.finish(run, exc, lost=isinstance(exc, Error))
        return (yield from _perform(run))


# How an attempt can end. All but the first are rolled back.


@dataclass(slots=True)
class Committed:
    #: The job that had done the work before, if any.
    source: Job | None
    #: What was raised at the commit all the same.
    struck: BaseException | None = None


@dataclass(slots=True)
class _RolledBack:
    exc: BaseException


class Conflict(_RolledBack):
    """The database ended this transaction in favour of another one: a deadlock, or a serialization failure."""


class Lost(_RolledBack):
    """The run failed because of the database, and not because of the body."""


class Raised(_RolledBack):
    """What the body asked for, or that the run lost its job."""


def _perform(run: Run) -> Steps:
    """Run the body, finish, and tell Celery; run the body again if its transaction conflicted with another one.

    A conflict is no failure of the body and no retry of the task: the run goes on under the same claim as long as it
    owns the job.
    """
    pauses = iter(RERUNS)
    if run.task.is_async:
        if run.job.marker_key is not None and markers.is_left(run.job):
            # The attempt finds out which job left the marker.
            run.is_atomic = True
        else:
            try:
                run.request.update(request.given(run.job))
            except Exception as unreadable:
                # The key that decrypts the arguments is missing here, say.
                return finish.finish(run, unreadable)
            yield None
            if run.job.state == State.SUCCEEDED:
                # The caller that awaited it has committed it, together with other runs.
                return tell(run, None, None)
    # A coroutine is not awaited again: what it planned stays.
    planned = len(run.planned)
    while True:
        match _raised(run) if run.body is not None and not run.is_atomic else _attempt(run):
            case Committed(source, struck):
                return tell(run, source, struck)
            case Conflict(exc) if (pause := next(pauses, None)) is not None:
                log(logging.INFO, run.job, f"runs again: {exc}", "conflict")
                # Release what the body held before it begins again.
                del exc
                pause = random.uniform(0, pause)
                if run.task.is_async:
                    yield pause
                else:
                    time.sleep(pause)
                del run.planned[planned:]
                finish.write(run, lambda: transitions.owns(run.job))
            # Celery's autoretry may have made a retry of a conflict: then the job runs again when that is due.
            case Raised(exc) | Conflict(Retry() as exc):
                return finish.finish(run, exc)
            case Conflict(exc) | Lost(exc):
                return finish.finish(run, exc, lost=True)


def _raised(run: Run) -> Conflict | Lost | Raised:
    """A coroutine has raised: there is nothing to commit. Celery's autoretry may make a retry of the exception."""
    assert run.body is not None
    try:
        request.restore(run)
        run.body()
    except LostLease as exc:
        return Raised(exc)
    except BaseException as exc:
        return _came_of(run, exc, "body", _is_lost(run, exc), None)  # type: ignore[return-value]
    raise AssertionError("it did not raise")


def _attempt(run: Run) -> Committed | Conflict | Lost | Raised:
    """Body and completion, in one transaction."""
    job, task, using = run.job, run.task, run.using
    run.result = run.replacement = source = None
    reached, is_lost = "begin", False

    def complete(stored: Any) -> bool:
        nonlocal reached
        written = [write for look in extensions.through("completing") if (write := look(run)) is not None]
        # With atomic=False the completion and what follows have a transaction of their own.
        needs_own = not run.is_atomic and (written or databases.in_test(using))
        with transaction.atomic(using) if needs_own else _NOTHING:
            for write in written:
                write()
            reach("before_commit")
            reached = "commit"
            # What follows the commit (hooks, calls, events, links) must not survive a crash that loses it.
            is_synced = task.is_synced or bool(written or at.connection.run_on_commit)
            if not transitions.succeed(job, stored, time.monotonic() - run.began, source, is_synced):
                raise LostLease("this run lost its lease; its transaction is rolled back")
            reach("after_completion")
        return True

    try:
        # A handler, or an attempt that was rolled back, may have changed the request, from which a retry is made.
        request.restore(run)
        # Made anew for each attempt: a body may change its arguments.
        args, kwargs = decoded(job.args), decoded(job.kwargs)
        at = store.of(using)
        # Where there is one writer the worker's processes take turns.
        with at.write_mutex() if run.is_atomic else _NOTHING, transaction.atomic(using) if run.is_atomic else _NOTHING:
            try:
                reached = "body"
                at.prepare_body()
                if "idempotency_key" in task.key_templates:
                    source = leave_marker(run)
                if source is not None:
                    run.result = decoded(source.result)
                else:
                    call_body(run, args, kwargs)
                if run.planned:
                    # retry(throw=False) and a normal return.
                    raise Retry(exc=None, when=None)
                look_after(run)
                if not run.is_atomic:
                    # The body's work is committed: what the database refuses from now on is not its failure.
                    reached = "commit"
                stored = None if run.result is None else finish.storable(run, run.result)
                if run.is_atomic:
                    complete(stored)
                else:
                    _complete_anyhow(run, lambda: complete(stored))
            except BaseException as exc:
                # Asked before the end of the block, which opens a new connection in place of a broken one.
                is_lost = _is_lost(run, exc)
                _roll_back(run, exc)
                raise
    except LostLease as exc:
        # It may also be of a hook after the commit, which asks self.checkpoint().
        return Committed(source, exc) if reached == "commit" and finish.is_committed(run) else Raised(exc)
    except BaseException as exc:
        return _came_of(run, exc, reached, is_lost, source)
    return Committed(source)


def call_body(run: Run, args: Any, kwargs: Any) -> None:
    """Call the body, where a soft time limit strikes; ``run.result`` or ``run.replacement`` is what it returned."""
    if run.body is None:
        run.began, run.promised = time.monotonic(), None
    pid = os.getpid()
    try:
        run.slot.enter(BODY)
        run.result = (run.body or run.task.own_call or run.task.run)(*args, **kwargs)
        if run.result is not None or run.promised is not None:
            run.result = extensions.instead(returned)(run, run.result)
    except Replaced as exc:
        run.replacement = exc.signature
    except NotHere as exc:
        # The body has read another job. It has begun, so its own job is not left to another worker.
        raise RuntimeError(str(exc)) from exc
    finally:
        if os.getpid() != pid:
            # The body has forked, and its child has left it. It would go on as a second process with this one's slot,
            # connection and jobs.
            log(logging.ERROR, run.job, "a process that its body forked left the body: it ends", "child_ended")
            os._exit(1)
        run.slot.enter(NAMED)
    if run.result is not None:
        check_returned(run.result)


def commit(run: Run | None, function: Any, args: Any, kwargs: Any) -> Any:
    """What ``Task.commit`` gives a body to return."""
    raise RuntimeError("nothing here calls what a body gives to self.commit()")


def returned(run: Run | None, result: Any) -> Any:
    """The result, if a body returned this. An extension does what is left to do. None: it was a plain call."""
    return result


def _complete_anyhow(run: Run, complete: Callable[[], bool]) -> None:
    """Complete a body whose work is committed, again and again: another run would do all of it a second time.

    The server, or a pooler, may have ended the connection while the body did something else. If it was committed, and
    only the answer was lost, ``complete`` raises ``LostLease``, and the caller reads the row.
    """
    raw = connections[run.using].connection
    try:
        complete()
    except Error as exc:
        finish.let_end(exc)
        is_away = databases.is_lost(exc, run.using, raw) or finish.is_passing(exc)
        if not is_away or persistently(run, complete) is None:
            raise


def _is_lost(run: Run, exc: BaseException) -> bool:
    """Whether the database failed the body. If the body closed its connection itself, it did not."""
    return not _is_closed(run) and databases.is_lost(exc, run.using)


def _is_closed(run: Run) -> bool:
    connection = connections[run.using]
    # psycopg 3 tells its own ``close()`` from a lost link.
    is_closed = getattr(connection.connection, "closed", False) and not getattr(connection.connection, "broken", True)
    return bool(run.is_atomic and (connection.closed_in_transaction or is_closed))


def _roll_back(run: Run, exc: BaseException) -> None:
    is_closed = _is_closed(run)
    databases.roll_back(run.using)
    # Django does not translate what a driver raises when a cursor is closed.
    own_error: Any = connections[run.using].Database.Error  # type: ignore[attr-defined]
    if is_closed and isinstance(exc, Error | own_error):
        # Not the database's fault, so the body is not run again by itself.
        raise ProgrammingError(
            "the body closed its connection to the database, and its work is lost with the transaction; declare the "
            "task with atomic=False if it manages its connections itself"
        ) from exc


def _came_of(
    run: Run, exc: BaseException, reached: str, is_lost: bool, source: Job | None
) -> Committed | Conflict | Lost | Raised:
    """What came of an attempt that raised; how far it had ``reached`` decides."""
    is_sent = reached == "commit"
    # A second name would make a cycle of exception and frame, which holds what the body held until Python collects it.
    exc = finish.shutdown_behind(exc) or (_what_struck(exc) if is_sent else exc)
    if is_sent and finish.is_committed(run):
        return Committed(source, exc)
    # The database refused, before the body or at its commit.
    is_refused = isinstance(exc, Error) and (reached == "begin" or (is_sent and finish.is_passing(exc)))
    # Of a coroutine that is over only the commit is done again, unless this process is to end.
    is_over = run.body is not None and isinstance(exc, Exception)
    if run.is_atomic and (_is_conflict(_what_struck(exc)) or (is_over and (is_lost or is_refused))):
        return Conflict(exc)
    return Lost(exc) if is_lost or is_refused else Raised(exc)


_NOTHING = nullcontext()


def tell(run: Run, source: Job | None, struck: BaseException | None) -> Any:
    """The job has succeeded; what is returned or raised is for Celery."""
    if struck is None:
        reach("after_commit")
    if struck is not None:
        text = f"succeeded although {type(struck).__name__} was raised at its commit"
        run.report(logging.WARNING, text, "succeeded")
    elif run.replacement is not None:
        run.report(logging.INFO, "was replaced by another task", "succeeded")
    else:
        if source is not None:
            log(logging.INFO, run.job, f"had nothing to do: {source.pk} did the same before", "replayed")
        # At INFO Celery says so itself, with the runtime and the result.
        run.report(logging.DEBUG, "succeeded", "succeeded")
    if run.replacement is not None:
        raise Ignore("replaced by another task") from struck
    if struck is not None and not isinstance(struck, Exception):
        raise struck
    return run.result


def leave_marker(run: Run, wait: float | None = None) -> Job | None:
    """The first statement of a body with an idempotency key; the job that was there before, if any (``markers``)."""
    template = run.task.key_templates["idempotency_key"]
    args, kwargs = run.job.args, run.job.kwargs
    if run.job.marker_key is None:
        # The release that enqueued it knew no key.
        run.job.marker_key = template.of(args, kwargs)
    return markers.earlier(run.job, fingerprint(run.task.name, template.signature, args, kwargs), wait)


def check_returned(result: Any) -> None:
    """Raise if the body returned something that has yet to be awaited, or iterated over: then it has not run."""
    if inspect.iscoroutine(result):
        # Else Python warns that it was never awaited.
        result.close()
    is_generator = inspect.isgenerator(result) or inspect.isasyncgen(result)
    if inspect.isawaitable(result) or is_generator:
        raise not_run(result)


def not_run(result: Any) -> TypeError:
    return TypeError(
        f"the body returned {safe_repr(result)}, which nobody awaits or iterates over: what is in it never ran; "
        "await it (a plain body calls it with async_to_sync of asgiref.sync), or make a list of it"
    )


def look_after(run: Run) -> None:
    """Raise if the connection that a body leaves behind cannot carry its completion: the body's work is lost."""
    if run.is_atomic:
        if databases.is_interrupted(run.using):
            raise ProgrammingError(
                "the body returned although a query of it was interrupted: its transaction cannot commit; let the "
                "exception that struck it (SoftTimeLimitExceeded?) pass"
            )
        store.of(run.using).validate()
    elif databases.has_transaction(run.using):
        raise ProgrammingError(
            "the body returned with an open transaction, or with autocommit off: its work would be lost; commit, and "
            "set it on"
        )
    elif not databases.is_idle(run.using):
        # Broken, or a query was left behind: what the body did is committed.
        databases.drop(run.using)


def _is_conflict(exc: BaseException) -> bool:
    # Celery's autoretry, or the body, may have made a retry of it.
    cause = exc.exc if isinstance(exc, Retry) else exc
    return cause is not None and databases.is_conflict(cause)


def _what_struck(exc: BaseException) -> BaseException:
    """A soft limit comes out as the driver's complaint about an interrupted COMMIT, or as a conflict in its cleanup."""
    return next((each for each in finish.chain(exc) if isinstance(each, SoftTimeLimitExceeded)), exc)
