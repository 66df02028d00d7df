"""Ends a run whose body did not simply return: after the rollback, against a database that may be away."""

from __future__ import annotations

import json
import logging
import random
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

from celery.exceptions import Ignore, Reject, Retry, WorkerShutdown, WorkerTerminate
from celery.result import ResultBase
from celery.utils.serialization import ensure_serializable
from django.db import Error, InterfaceError, OperationalError, transaction

from jobs import extensions
from jobs.calling import outbox
from jobs.conf import conf
from jobs.conf.celery_releases import was_told_to_end
from jobs.conf.logs import log
from jobs.errors import Busy, Cancel, LostLease, NotSettled, Snooze, for_celery
from jobs.lifecycle import transitions
from jobs.lifecycle.run import NotHere, Run, Suspended, persistently
from jobs.models import Job, State, columns
from jobs.models.fields import uuid7
from jobs.models.values import jsonable, safe_repr, scrub
from jobs.store import databases

#: Seconds after which a job looks by itself whether what another job held is free.
BUSY_PAUSE = 10.0


@dataclass
class Outcome:
    """What becomes of a run that did not simply return."""

    #: In one word, as the log and the signals name it.
    action: str
    text: str
    #: The fenced statement; False: this run no longer owns the job.
    write: Callable[[], bool]
    #: What Celery hears.
    told: BaseException
    level: int = logging.INFO
    #: What else is logged.
    more: dict[str, Any] = field(default_factory=dict)


def finish(run: Run, exc: BaseException, lost: bool = False) -> NoReturn:
    """After the rollback: write what the exception means, then tell Celery, by raising it or another one.

    Parameters:
        lost: the run failed because of the database, and not because of the body.
    """
    if (shutdown := shutdown_behind(exc)) is not None:
        # The supervisor that sees this process die gives the job back.
        raise shutdown
    job, error = run.job, entry(run, exc)
    outcome = _lost(job, error) if lost else _meant(run, exc, error)
    write(run, outcome.write)
    told = outcome.told
    if job.state == State.FAILED and isinstance(told, Ignore | Retry):
        # It reached a limit, or another job has its key: the row says which.
        reason = job.own_error or error
        told = RuntimeError(f"{reason['type']}: {reason['message']}")
    elif job.state == State.CANCELLED and isinstance(told, Retry):
        told = Cancel("the job was asked to end")
    try:
        raise exc
    except BaseException:
        # Receivers of signals ask ``sys.exc_info()``, as the log of Django's tasks does.
        run.report(outcome.level, outcome.text, outcome.action, **outcome.more)
        if told is exc:
            raise
        raise told from exc


def _lost(job: Job, error: dict[str, Any]) -> Outcome:
    write = partial(transitions.lose, job, error, conf().MAX_NODE_LOSSES)
    text, told = f"lost its database: {error['message']}", Ignore(error["message"])
    return Outcome("handed_back", text, write, told, logging.WARNING)


def _meant(run: Run, exc: BaseException, error: dict[str, Any]) -> Outcome:
    """What the body asked for, by the exception that left it."""
    job, ignored = run.job, Ignore(error["message"])
    match exc:
        case LostLease():
            # Or the completion found a note that the job should end.
            text, told = "cancelled: it was asked to end", Cancel("the job was asked to end")
            return Outcome("cancelled", text, lambda: transitions.heed(job) or _hid_its_row(job, error), told)
        case Retry() if run.planned:
            cause = entry(run, exc.exc) if isinstance(exc.exc, BaseException) else error
            text, more = f"will be retried: {cause['type']}: {cause['message']}", {"retries": run.planned[-1].retries}
            return Outcome("retried", text, partial(_retry, run, cause), exc, more=more)
        case Busy() if exc.wait is not None:
            # The holder wakes the job. The pause, with jitter, is for a holder that died.
            seconds = random.uniform(0.5, 1) * BUSY_PAUSE
            text = f"waits for {seconds:.1f} s, or until it is free: {error['message']}"
            return Outcome("snoozed", text, partial(exc.wait, job, seconds, error), ignored)
        case Suspended():
            return Outcome("suspended", str(exc), exc.write, ignored)
        case Snooze() | Busy():
            return _snoozed(job, error, exc.seconds if isinstance(exc, Snooze) else None)
        case NotHere():
            seconds = random.uniform(0.5, 1) * min(exc.pause * 2 ** min(max(job.lease - 1, 0), 9), exc.longest)
            write = partial(transitions.hand_back, job, seconds, error, exc.waits_for)
            return Outcome("handed_back", f"left to another worker: {exc}", write, ignored, logging.WARNING)
        case Reject(requeue=True):
            return Outcome("handed_back", "handed back", partial(transitions.hand_back, job, 1.0), ignored)
        case Ignore():
            cancelled = error | {"type": getattr(exc, "kind", "Cancelled")}
            is_ended = lambda: transitions.heed(job) or transitions.cancel_running(job, cancelled)  # noqa: E731
            text = f"cancelled: {error['message']}" if error["message"] else "cancelled by its body"
            return Outcome("cancelled", text, is_ended, exc)
        case Reject(reason=Exception() as reason):
            # ``retry()`` could not make its call.
            error = entry(run, reason)
    said = f"{error['type']}: {error['message']}"
    if (seconds := extensions.instead(pause)(run, exc)) is not None:
        write = partial(transitions.retry, job, transitions.now_plus(seconds), error, {})
        text, more = f"will be retried in {seconds:.0f} s: {said}", {"retries": job.retries + 1}
        return Outcome("retried", text, write, Retry(exc=exc, when=round(seconds)), more=more)
    if run.is_atomic and databases.is_full(exc):
        # A person will make room: this is not the body's failure, even if its retries are used up.
        return _snoozed(job, error)
    # Also a Retry that was raised by hand, without retry(): Celery would not send it again either.
    final, more = for_celery(exc), {"is_raised": not isinstance(exc, Retry | Reject)}
    return Outcome("failed", f"failed: {said}", partial(transitions.fail, job, error), final, logging.ERROR, more)


def pause(run: Run, exc: BaseException) -> float | None:
    """Seconds until a job whose task does not retry it is tried again; None: it has failed for good."""
    return None


def _hid_its_row(job: Job, error: dict[str, Any]) -> bool:
    """Fail a run that did not find its row, though it has it: after the rollback the row is there as it was."""
    text = "the completion did not find the row of the job: its body had changed or deleted it"
    return transitions.owns(job) and transitions.fail(job, error | {"message": text})


def _snoozed(job: Job, error: dict[str, Any], seconds: float | None = None) -> Outcome:
    if seconds is None:
        # Pauses grow, with jitter: no job starves, and no job hammers the database.
        seconds = random.uniform(0.5, 1) * min(10.0, 1 + job.snoozes / 2)
    write = partial(transitions.snooze, job, seconds, error, conf().MAX_SNOOZES)
    return Outcome("snoozed", f"snoozed for {seconds:.1f} s: {error['message']}", write, Ignore(error["message"]))


def _retry(run: Run, error: dict[str, Any]) -> bool:
    """The last call that ``retry()`` sent is this job again; each other one becomes a job of its own, in one commit."""
    job, (*others, planned) = run.job, run.planned
    run_at = planned.run_at if planned.state == State.SCHEDULED else None
    kept = ("args", "kwargs", "options", "queue", "priority", "rank", "expires_at", "marker_key", "limit_key")
    changes = {name: getattr(planned, name) for name in kept}
    if job.unique_key is not None and planned.unique_key != job.unique_key:
        # With other arguments it does other work.
        changes["unique_key"] = planned.unique_key
    if (planned.args, planned.kwargs) != (job.args, job.kwargs):
        # What extensions make of the arguments: by templates, or as options of a call.
        names = (run.task.key_templates.keys() | columns.OPTIONS.keys()) & {*columns.ADDED}
        changes |= {name: getattr(planned, name) for name in names}
    if (said := job.options.get("task_id")) is not None:
        planned.options["task_id"] = said
    if not others:
        return transitions.retry(job, run_at, error, changes)
    added = {name: getattr(job, name) for name in columns.ADDED}
    for other in others:
        other.__dict__.update(id=uuid7(), made_at=None, parent_id=job.pk, root=job.root_id, **added)
        # The id that the first call was given is this job's.
        other.options.pop("task_id", None)
    with transaction.atomic(using=run.using):
        done = transitions.retry(job, run_at, error, changes)
        if done and job.state != State.CANCELLED:
            outbox.record(others, run.using, run.task.app)
    return done


def write(run: Run, transition: Callable[[], bool]) -> None:
    """Finish after the rollback, again and again while the database is away.

    If the database refuses the values for good, the job ends ``failed``, with the text of the refusal.

    Raises:
        LostLease: this run is a zombie; another one owns the job.
        NotSettled: the database stays away; the node hands the job back when it returns.
    """
    tries = 0

    def finished() -> bool:
        nonlocal tries
        tries += 1
        try:
            done = transition()
        except (Error, TypeError, ValueError, OverflowError) as exc:
            if isinstance(exc, Error) and not databases.is_refusal(exc):
                raise
            log(logging.ERROR, run.job, f"cannot be finished as it wants: {exc}", "finish_refused")
            return transitions.fail(run.job, entry(run, exc))
        # The first attempt may have been committed, and only its answer got lost.
        return done or (tries > 1 and _was_finished(run))

    done = persistently(run, finished)
    if done is None:
        log(logging.ERROR, run.job, "could not be finished: no database", "finish_failed")
        raise NotSettled("the database is away")
    if not done:
        log(logging.WARNING, run.job, "was given to another run, or killed", "lost_lease")
        raise LostLease("this run lost its lease")


#: The columns that the end of a run may have changed.
_FINISHED = columns.named(columns.Part.FINISH)


def _was_finished(run: Run) -> bool:
    """Whether an attempt of this run is what the row says; then the job says the same.

    A rescue leaves the lease and the token as they are, and writes an error of its own.
    """
    job = run.job
    own = Job.objects.using(run.using).filter(pk=job.pk, lease=job.lease, token=job.token).exclude(state=State.RUNNING)
    row = own.first()
    if row is None or (row.own_error or {}).get("at") not in job.attempted:
        return False
    for name in _FINISHED:
        setattr(job, name, getattr(row, name))
    job.forget_computed()
    return True


def is_committed(run: Run) -> bool:
    """The answer of a COMMIT can get lost: read the row on a new connection, and believe it."""
    own = {"pk": run.job.pk, "lease": run.job.lease, "token": run.job.token}

    def read() -> bool:
        databases.drop(run.using)
        row = Job.objects.using(run.using).filter(state=State.SUCCEEDED, **own).first()
        if row is not None:
            # What hears of the success sees it.
            transitions.note_success(run.job, row.result)
        return row is not None

    return bool(persistently(run, read))


def is_passing(exc: Error) -> bool:
    """A refusal at the commit that another attempt may not meet: serialization failure, deadlock, shutdown."""
    if code := databases.sqlstate(exc):
        return code[:2] in ("40", "57", "08")
    return isinstance(exc, OperationalError | InterfaceError)


# The end of this process


def shutdown_behind(exc: BaseException) -> BaseException | None:
    """The exception that ends this process from outside: a signal to a pool child, or to a worker without one.

    The driver may have raised an error of its own about what was interrupted: then it is behind that error.
    """
    is_told = was_told_to_end()
    # Celery's workers have handlers of their own for Ctrl-C: there the body has raised it.
    is_main = threading.current_thread() is threading.main_thread()
    is_ctrl_c = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    for each in chain(exc):
        is_signal = is_told and not isinstance(each, Exception | Suspended)
        is_stop = is_signal or isinstance(each, WorkerShutdown | WorkerTerminate)
        if is_stop or (is_ctrl_c and isinstance(each, KeyboardInterrupt)):
            return each
    # SQLite says only that a function (one of Django's, such as for dates) raised something.
    if is_told and isinstance(exc, OperationalError):
        return SystemExit()
    return None


def let_end(exc: Exception) -> None:
    """Raise the shutdown behind an error, if there is one: for an ordinary error the caller would go on."""
    if (shutdown := shutdown_behind(exc)) is not None:
        raise shutdown from None


def chain(exc: BaseException) -> Iterator[BaseException]:
    """The exception, and those that were being handled when it was raised; a body may have tied them into a ring."""
    seen: set[int] = set()
    each: BaseException | None = exc
    while each is not None and id(each) not in seen:
        yield each
        seen.add(id(each))
        each = each.__context__


# What is kept and told of a run


def storable(run: Run, result: Any) -> Any:
    if isinstance(result, ResultBase):
        # As Celery keeps it: ids, which `result_from_tuple` takes.
        result = result.as_tuple()
    try:
        return jsonable(result, "the result")
    except (TypeError, ValueError) as exc:
        if run.request.chord:
            # The body of the chord needs the result itself, and not its repr.
            raise
        if run.job.marker_key is not None:
            # A job that replays it could not tell a repr from a result.
            text = f"{exc}; the result of a task with an idempotency_key is replayed, so it has to be JSON"
            raise type(exc)(text) from exc
        log(logging.WARNING, run.job, f"returned something that is kept as its repr: {exc}", "result_repr")
        return {"__type__": "repr", "__value__": scrub(safe_repr(result), 4000)}


def entry(run: Run, exc: BaseException) -> dict[str, Any]:
    """The error for the row, with what ``jobs.backend`` needs to make the exception again: its class and arguments."""
    try:
        message = str(exc)
    except Exception:
        message = safe_repr(exc)
    text = "".join(traceback.format_exception(exc))
    entry = transitions.error_entry(type(exc).__name__, message, text, attempt=run.job.lease)
    with suppress(Exception):
        if type(exc).__module__ != "builtins":
            entry["class"] = jsonable(f"{type(exc).__module__}:{type(exc).__qualname__}", "the class")
        if exc.args != (message,):
            args = jsonable(ensure_serializable(exc.args, lambda value: jsonable(value, "it")), "the arguments")
            entry |= {"args": args} if len(json.dumps(args)) <= 4000 else {}
    return entry
