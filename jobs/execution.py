"""The pipeline of a run, to be read from top to bottom: claim, body in its transaction, settle."""

from __future__ import annotations

import logging
import random
import time
import uuid
from contextlib import ExitStack, nullcontext
from typing import Any, NoReturn

from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from django.db import (
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    OperationalError,
    ProgrammingError,
    transaction,
)

from jobs import current, databases, idempotency, lifecycle, settlement, signals, strays, tracing
from jobs.arguments import as_uuid
from jobs.board import board
from jobs.conf import conf
from jobs.errors import Cancel, LostLease, NotSettled
from jobs.keys import fingerprint
from jobs.locks import lock
from jobs.message import is_newer
from jobs.models import Job, State
from jobs.run import Run
from jobs.syncpoints import reach

logger = logging.getLogger("jobs")

#: The longest pauses, in seconds, before a body that met a conflict is run again under the same claim.
RERUNS = (0.02, 0.1, 0.5, 2.0)


def is_delivery(request: Any) -> bool:
    """Whether this is the outermost call of a message that a worker received."""
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
    """Run a delivered message: returns or raises what Celery is to make of it.

    Raises:
        Ignore: there is nothing to do, or nothing more to say (duplicate, zombie, handback).
        Exception: what the body raised, after it was settled.
    """
    header = getattr(request, "jobs", None)
    is_ours = isinstance(header, dict)
    using = header.get("db", databases.home()) if isinstance(header, dict) else databases.home()
    job_id = as_uuid(request.id)
    assert job_id is not None
    with board.running(job_id) as slot, settlement.unmasked():
        if not is_ours:
            try:
                using = _adopt(task.name, request, args, kwargs)
            except (TypeError, ValueError, DataError, IntegrityError) as exc:
                return _run_stock(task, request, args, kwargs, exc)
        reach("before_claim")
        began = time.time_ns()
        job = _claim(task, job_id, using)
        if job is None:
            _unclaimed(task, job_id, using)
        slot.lease(job.lease)
        reach("after_claim")
        run = Run(task, request, job)
        request.jobs_run = run
        try:
            with tracing.processing(run, began):
                if is_newer(job.options):
                    _leave_to_newer(run)
                run.log(logging.DEBUG, "started", "started")
                signals.started.tell(job, using)
                with current.running(run):
                    return _exclusively(run)
        finally:
            settlement.quietly(lambda: databases.tidy(using))


def _leave_to_newer(run: Run) -> NoReturn:
    """The message was older than its row: a retry by the code of a later release wrote it anew."""
    settlement.write(run, lambda: lifecycle.hand_back(run.job, strays.UNKNOWN_PAUSE))
    run.report(logging.WARNING, "left to the workers of a later release", "handed_back")
    raise Ignore()


#: How a message comes to its queue.
ADDRESS = ("exchange", "routing_key", "priority")


def _take_from_row(request: Any, job: Job) -> None:
    """The row wins over the message, which may be an old copy."""
    embed, publish = job.options["embed"], job.options["publish"]
    address = {name: publish[name] for name in ADDRESS if name in publish}
    request.update(
        {
            **job.headers,
            "headers": request._get_custom_headers(job.headers),
            "expires": job.expires_at and job.expires_at.isoformat(),
            "args": job.args,
            "kwargs": job.kwargs,
            "retries": job.retries,
            "callbacks": embed.get("callbacks"),
            "errbacks": embed.get("errbacks"),
            "chain": embed.get("chain"),
            "chord": embed.get("chord"),
            # A retry goes where the row says by now, and not where this message came from.
            "delivery_info": (request.delivery_info or {}) | address,
        }
    )


def _claim(task: Any, job_id: uuid.UUID, using: str) -> Job | None:
    """Claim, over a connection that the server may have closed since the last task.

    A node that could not beat for half of the time after which it is dead claims nothing: others may be about to
    call it dead.

    Raises:
        NotSettled: the database is away. The companion has the job published again when it is back, or gives it back
            if it was claimed and only the answer got lost; if this worker ends first, the job waits for its grace.
    """
    reason = ""
    for pause in settlement.RECONNECT:
        time.sleep(pause)
        if board.silence > conf().DEAD_AFTER / 2:
            reason = f"this node could not beat for {board.silence:.1f} s"
            continue
        try:
            return lifecycle.claim(job_id, board.node, using)
        except (OperationalError, InterfaceError) as exc:
            reason = str(exc)
            databases.drop(using)
    logger.error(
        "%s[%s] cannot be claimed, there is no database: %s",
        task.name,
        job_id,
        reason,
        extra={"action": "claim_failed", "job": str(job_id), "task": task.name, "node": str(board.node)},
    )
    raise NotSettled(reason)


def _adopt(task: str, request: Any, args: Any, kwargs: Any) -> str:
    """A message that no ``delay()`` of ours made gets its row. Race: of several copies, one inserts.

    Raises:
        Reject: the database is away; nothing but the message knows of this job, so it goes back to the broker.
        TypeError, ValueError: what it carries cannot be kept.
    """
    for pause in settlement.RECONNECT:
        time.sleep(pause)
        try:
            return strays.adopt(task, request, args, kwargs)
        except (OperationalError, InterfaceError) as exc:
            error = exc
            databases.drop(databases.job_alias())
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


def _unclaimed(task: Any, job_id: uuid.UUID, using: str) -> NoReturn:
    """Nobody claimed: say why, and see that a job that should run gets another message."""
    try:
        job = Job.objects.using(using).filter(pk=job_id).first()
        if job is not None and job.state == State.READY:
            # Expired (the relay cancels it), or of a paused queue (it is published when that is resumed), or this node
            # was declared dead and has not yet a new id.
            lifecycle.release_message(job_id, using)
    except (OperationalError, InterfaceError) as exc:
        databases.drop(using)
        raise NotSettled(str(exc)) from exc
    # Not the node of the row: it is this one that got the message.
    fields: dict[str, Any] = {"action": "duplicate", "job": str(job_id), "task": task.name, "node": str(board.node)}
    if job is not None:
        fields |= {"queue": job.queue, "lease": job.lease}
    if job is None:
        logger.info("job %s is gone: pruned, or its transaction rolled back", job_id, extra=fields)
    elif job.state == State.READY:
        text = "job %s may not be claimed now; it is published again when it may"
        logger.info(text, job_id, extra={**fields, "action": "unclaimed"})
    else:
        logger.info("job %s is %s: a duplicate message", job_id, job.state, extra=fields)
    raise Ignore()


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
        run.planned = None
        settlement.write(run, lambda: lifecycle.owns(run.job))
    return _attempt(run, may_repeat=False)


def _attempt(run: Run, may_repeat: bool) -> Any:
    """Body and completion, in one transaction; every other outcome is settled after its rollback."""
    job = run.job
    entered = settled = lost = False
    try:
        _take_from_row(run.request, job)
        with transaction.atomic(using=run.using) if run.task.atomic else nullcontext():
            entered = True
            try:
                source = _leave_marker(run)
                result = source.result if source is not None else run.task.run(*job.args, **job.kwargs)
                if run.planned is not None:
                    # retry(throw=False) and a normal return.
                    raise Retry(exc=None, when=None)
                _look_after(run)
                stored = settlement.storable(run, result)
                reach("before_commit")
                settled = True
                if not (lifecycle.succeed(job, stored) if source is None else lifecycle.succeed_like(job, source)):
                    raise LostLease("this run lost its lease; its transaction is rolled back")
                reach("after_completion")
            except BaseException as exc:
                # Before the end of the block, which opens a new connection in place of a broken one.
                lost = databases.is_lost(exc, run.using)
                databases.cancel_query(run.using)
                databases.roll_back(run.using)
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
