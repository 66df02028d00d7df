"""The pipeline of a run, to be read from top to bottom: claim, body in its transaction, settle."""

from __future__ import annotations

import logging
import random
import time
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NoReturn

from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from django.db import (
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    OperationalError,
    ProgrammingError,
    connections,
    transaction,
)

from jobs import adoption, claims, current, databases, idempotency, lifecycle, savepoints, settlement, signals, tracing
from jobs.arguments import decoded
from jobs.board import board
from jobs.calls import is_newer
from jobs.errors import Cancel, LostLease
from jobs.keys import fingerprint
from jobs.locks import lock
from jobs.models import Job
from jobs.run import Run
from jobs.syncpoints import reach
from jobs.turns import turn

logger = logging.getLogger("jobs")

#: Not the database's fault, so the body is not run again by itself.
CLOSED = (
    "the body closed its connection to the database, and its work is lost with the transaction; declare the task with "
    "atomic=False if it manages its connections itself"
)

#: The longest pauses, in seconds, before a body that met a conflict is run again under the same claim.
RERUNS = (0.02, 0.1, 0.5, 2.0)


def is_delivery(request: Any) -> bool:
    """Whether this is the outermost call of what a worker was given: a claimed job, or a message by name."""
    return (
        request is not None
        and not request.called_directly
        and not request.is_eager
        and getattr(request, "jobs_run", None) is None
    )


def current_run(task: Any) -> Run | None:
    """The run whose body is calling, if it is a run of this task."""
    run = getattr(task.request_stack.top, "jobs_run", None)
    return run if isinstance(run, Run) else None


def run(task: Any, request: Any, args: Any, kwargs: Any) -> Any:
    """Run a claimed job: returns or raises what Celery is to make of it. A message by name gets its row.

    Raises:
        Ignore: there is nothing more to say (zombie, handback, adopted).
        Exception: what the body raised, after it was settled.
    """
    claimed = current.take_claimed()
    if claimed is None:
        return _adopt(task, request, args, kwargs)
    job, slot = claimed
    with settlement.unmasked():
        run = Run(task, request, job, slot)
        request.jobs_run = run
        reach("after_claim")
        began = time.time_ns()
        try:
            with tracing.processing(run, began):
                if is_newer(job.options):
                    _leave_to_newer(run)
                run.log(logging.DEBUG, "started", "started")
                signals.started.tell(job, run.using)
                with current.running(run):
                    return _exclusively(run)
        finally:
            settlement.quietly(lambda: databases.tidy(run.using))


#: Seconds until a job is tried again that only a later release can run.
NEWER_PAUSE = 5.0


def _leave_to_newer(run: Run) -> NoReturn:
    settlement.write(run, lambda: lifecycle.hand_back(run.job, NEWER_PAUSE))
    run.report(logging.WARNING, "left to the workers of a later release", "handed_back")
    raise Ignore()


def _adopt(task: Any, request: Any, args: Any, kwargs: Any) -> Any:
    """A message that no ``delay()`` of ours made gets its row, and is acknowledged after that.

    Raises:
        Ignore: it has its row.
        Reject: the database is away; nothing but the message knows of this job, so it goes back to the broker.
    """
    error: Exception
    for pause in settlement.RECONNECT:
        time.sleep(pause)
        try:
            with settlement.unmasked():
                adoption.adopt(task.name, request, args, kwargs)
        except (OperationalError, InterfaceError) as exc:
            error = exc
            databases.drop(databases.job_alias())
        except (TypeError, ValueError, DataError, IntegrityError) as exc:
            return _run_stock(task, request, args, kwargs, exc)
        else:
            raise Ignore("it is a job now")
    raise Reject(str(error), requeue=True)


def _run_stock(task: Any, request: Any, args: Any, kwargs: Any, exc: Exception) -> Any:
    if task.key_templates:
        # Without a row there is neither marker nor lock, and it would do what they are to prevent.
        raise exc
    logger.warning(
        "%s[%s] was sent by name and not by delay(), and cannot be kept as a job; it runs as a stock Celery task: %s",
        task.name,
        request.id,
        exc,
        extra={"action": "foreign", "job": str(request.id), "task": task.name, "node": str(board.node)},
    )
    request.jobs_run = False
    return task.run(*args, **kwargs)


def _exclusively(run: Run) -> Any:
    """Hold the task's lock, if it has one, until the run is settled: the next holder sees what it committed."""
    template = run.task.key_templates.get("lock")
    if template is None:
        return _perform(run)
    with ExitStack() as held:
        try:
            key = template.of(run.job.args, run.job.kwargs)
            run.lock_token = held.enter_context(lock(key, ttl=run.task.lock_ttl))
        except BaseException as exc:
            return settlement.settle(run, exc, lost=isinstance(exc, Error))
        return _perform(run)


def _perform(run: Run) -> Any:
    """Run the body; and again if its transaction met another one's: a deadlock, or a serialization failure.

    Of two transactions that wait for each other the database ends one. That is neither the body's failure nor a
    retry of the task: it rolls back, and goes on under the same claim as long as this run owns the job.
    """
    for pause in RERUNS:
        try:
            return _attempt(run, may_repeat=True)
        except _Conflict as conflict:
            run.log(logging.INFO, f"runs again: {conflict.__cause__}", "conflict")
        time.sleep(random.uniform(0, pause))
        run.planned.clear()
        settlement.write(run, lambda: lifecycle.owns(run.job))
    return _attempt(run, may_repeat=False)


def _attempt(run: Run, may_repeat: bool) -> Any:
    """Body and completion, in one transaction; every other outcome is settled after its rollback."""
    job = run.job
    entered = settled = lost = False
    try:
        # Each attempt has its own, and a retry those of the call: a body may change what it was given.
        args, kwargs = decoded(job.args), decoded(job.kwargs)
        run.request.update(args=decoded(job.args), kwargs=decoded(job.kwargs))
        with _transaction(run):
            entered = True
            try:
                source = _leave_marker(run)
                if source is not None:
                    result = decoded(source.result)
                else:
                    run.began = time.monotonic()
                    with run.slot.body():
                        result = run.task.run(*args, **kwargs)
                if run.planned:
                    # retry(throw=False) and a normal return.
                    raise Retry(exc=None, when=None)
                _look_after(run)
                stored = settlement.storable(run, result)
                reach("before_commit")
                settled = True
                if not _complete(run, stored, source):
                    raise LostLease("this run lost its lease; its transaction is rolled back")
                reach("after_completion")
            except BaseException as exc:
                # Before the end of the block, which opens a new connection in place of a broken one.
                is_closed = run.task.atomic and connections[run.using].closed_in_transaction
                lost = not is_closed and databases.is_lost(exc, run.using)
                databases.cancel_query(run.using)
                databases.roll_back(run.using)
                if is_closed and isinstance(exc, Error):
                    raise ProgrammingError(CLOSED) from exc
                raise
    except LostLease:
        settlement.write(run, lambda: lifecycle.heed(job))
        run.report(logging.INFO, "cancelled: it was asked to end", "cancelled")
        raise Cancel("the job was asked to end") from None
    except BaseException as exc:
        exc = settlement.shutdown_behind(exc) or (_what_struck(exc) if settled else exc)
        lost = lost or (isinstance(exc, Error) and not entered)
        if settled and settlement.is_committed(run):
            run.report(
                logging.WARNING, f"succeeded although {type(exc).__name__} was raised at its commit", "succeeded"
            )
            if isinstance(exc, Exception):
                return result
            raise exc
        if is_conflict := run.task.atomic and _is_conflict(_what_struck(exc)):
            if may_repeat:
                raise _Conflict from exc
            is_conflict = not isinstance(exc, Retry)
        return settlement.settle(run, exc, lost=lost or is_conflict or (settled and settlement.may_pass(exc)))
    reach("after_commit")
    if source is not None:
        run.log(logging.INFO, f"had nothing to do: {source.pk} did the same before", "replayed")
    # At INFO Celery says so itself, with the runtime and the result.
    run.report(logging.DEBUG, "succeeded", "succeeded")
    return result


def _complete(run: Run, stored: Any, source: Job | None) -> bool:
    if source is not None:
        return lifecycle.succeed_like(run.job, source)
    return claims.succeed(run.job, stored, time.monotonic() - run.began)


def _transaction(run: Run) -> AbstractContextManager[Any]:
    """The transaction of the body and its completion; on SQLite the worker's processes take turns."""
    with ExitStack() as stack:
        if run.task.atomic:
            stack.enter_context(turn(run.using))
            # If it cannot begin, the turn is over.
            stack.enter_context(transaction.atomic(using=run.using))
            savepoints.spare(connections[run.using])
        return stack.pop_all()


def _look_after(run: Run) -> None:
    """See that the connection that a body leaves behind can carry its completion.

    Raises:
        ProgrammingError: it cannot, and what the body did is lost.
    """
    if run.task.atomic:
        if databases.is_interrupted(run.using):
            raise ProgrammingError(
                "the body returned although a query of it was interrupted: its transaction cannot commit; let the "
                "exception that struck it (SoftTimeLimitExceeded?) pass"
            )
    elif databases.has_transaction(run.using):
        raise ProgrammingError(
            "the body returned with an open transaction, or with autocommit off: its work would be lost; commit, and "
            "set it on"
        )
    elif not databases.is_idle(run.using):
        # Broken, or a query was left behind: what the body did is committed.
        databases.drop(run.using)


def _leave_marker(run: Run) -> Job | None:
    """The first statement of a body with an idempotency key; the job that was there before, if any."""
    template = run.task.key_templates.get("idempotency_key")
    if template is None:
        return None
    args, kwargs = run.job.args, run.job.kwargs
    if run.job.marker_key is None:
        # The release that enqueued it knew no key.
        run.job.marker_key = template.of(args, kwargs)
    return idempotency.earlier(run.job, fingerprint(run.task.name, template.signature, args, kwargs))


class _Conflict(Exception):
    """The database ended this transaction in favour of another."""


def _is_conflict(exc: BaseException) -> bool:
    # Celery's autoretry, or the body, has made a retry of it.
    cause = exc.exc if isinstance(exc, Retry) else exc
    return cause is not None and databases.is_conflict(cause)


def _what_struck(exc: BaseException) -> BaseException:
    """A soft limit comes out as the driver's complaint about an interrupted COMMIT, or as a conflict in its cleanup."""
    return next((each for each in settlement.chain(exc) if isinstance(each, SoftTimeLimitExceeded)), exc)
