"""What is made of a run whose body did not simply return: after the rollback, against a database that may be away."""

from __future__ import annotations

import logging
import random
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from billiard.common import terminate_handler_fired
from celery.exceptions import Ignore, Reject, Retry, WorkerShutdown, WorkerTerminate
from django.db import Error, InterfaceError, OperationalError, transaction

from jobs import databases, lifecycle, outbox
from jobs.arguments import jsonable, scrub
from jobs.conf import conf
from jobs.errors import Busy, LostLease, NotSettled, Snooze, TaskExited, TaskOutOfMemory
from jobs.fields import uuid7
from jobs.models import Job, State
from jobs.run import Run

logger = logging.getLogger("jobs")

#: Seconds between the attempts to reach a database that is away, and how often.
RECONNECT = (0.0, 0.1, 0.4, *[0.5] * 14)


def is_committed(run: Run) -> bool:
    """The answer of a COMMIT can get lost: read the row on a new connection, and believe it."""

    def read() -> bool:
        databases.drop(run.using)
        return (
            Job.objects.using(run.using)
            .filter(pk=run.job.pk, state=State.SUCCEEDED, lease=run.job.lease, token=run.job.token)
            .exists()
        )

    return bool(persistently(run, read))


def settle(run: Run, exc: BaseException, lost: bool) -> Any:
    """After the rollback: write what the body's exception means, then tell Celery.

    Parameters:
        lost: the database failed the run, and not the body.

    Raises:
        Ignore, Retry, Exception: always, but for the shutdown of this process, which passes through.
    """
    job = run.job
    if (shutdown := shutdown_behind(exc)) is not None:
        # Whoever sees this process die gives the job back.
        raise shutdown
    if lost:
        error = _entry(run, exc)
        write(run, lambda: lifecycle.lose(job, error, conf().MAX_NODE_LOSSES))
        run.report(logging.WARNING, f"lost its database: {exc}", "handed_back")
        raise Ignore(str(exc)) from exc
    if isinstance(exc, Retry):
        _retry(run, exc)
    if isinstance(exc, Snooze | Busy):
        _snooze(run, exc)
    if isinstance(exc, Reject) and exc.requeue:
        write(run, lambda: lifecycle.hand_back(job, 1.0))
        run.report(logging.INFO, "handed back", "handed_back")
        raise Ignore(str(exc)) from exc
    if isinstance(exc, Ignore):
        error = _entry(run, exc, kind="Cancelled")
        write(run, lambda: lifecycle.heed(job) or lifecycle.cancel_running(job, error))
        run.report(logging.INFO, "cancelled by its body", "cancelled")
        raise exc
    error = _entry(run, exc)
    write(run, lambda: lifecycle.fail(job, error))
    run.report(logging.ERROR, f"failed: {error['type']}: {error['message']}", "failed")
    raise _for_celery(exc)


def _snooze(run: Run, exc: Snooze | Busy) -> NoReturn:
    # Who finds something busy tries again later and later, at no fixed time: nobody starves, and nobody hammers.
    seconds = exc.seconds if isinstance(exc, Snooze) else random.uniform(0.5, 1) * min(10.0, 1 + run.job.snoozes / 2)
    error = _entry(run, exc)
    write(run, lambda: lifecycle.snooze(run.job, seconds, error, conf().MAX_SNOOZES))
    run.report(logging.INFO, f"snoozed for {seconds:.1f} s: {error['message']}", "snoozed")
    raise Ignore(str(exc)) from exc


def _retry(run: Run, exc: Retry) -> None:
    job = run.job
    if not run.planned:
        # Raised by hand, without retry(): the message would not be sent again by Celery either.
        error = _entry(run, exc)
        write(run, lambda: lifecycle.fail(job, error))
        run.report(logging.ERROR, f"failed: {error['type']}: {error['message']}", "failed")
        raise exc
    *others, planned = run.planned
    error = _entry(run, exc.exc if isinstance(exc.exc, BaseException) else exc)
    run_at = planned.run_at if planned.state == State.SCHEDULED else None
    kept = ("args", "kwargs", "options", "queue", "priority", "rank", "expires_at", "marker_key")
    changes = {name: getattr(planned, name) for name in kept}
    for other in others:
        other.__dict__.update(id=uuid7(), made_at=None, parent_id=job.pk, root=job.root_id)

    def transition() -> bool:
        with transaction.atomic(using=run.using):
            done = lifecycle.retry(job, run_at, error, changes)
            if done and others and job.state != State.CANCELLED:
                outbox.record(others, run.using, run.task.app)
            return done

    write(run, transition)
    text = f"will be retried: {error['type']}: {error['message']}"
    run.report(logging.INFO, text, "retried", retries=planned.retries)
    raise exc


def shutdown_behind(exc: BaseException) -> BaseException | None:
    """What ends this process from outside; the driver may complain in front of it about what was interrupted."""
    behind = next(filter(_is_shutdown, chain(exc)), None)
    if behind is None and isinstance(exc, OperationalError) and terminate_handler_fired():
        # SQLite says only that a function (one of Django's, such as for dates) raised something.
        return SystemExit()
    return behind


@contextmanager
def unmasked() -> Iterator[None]:
    """Let nothing stand in front of a shutdown: who sees an ordinary error takes the process for alive."""
    try:
        yield
    except Exception as exc:
        if (shutdown := shutdown_behind(exc)) is not None:
            raise shutdown from None
        raise


def chain(exc: BaseException) -> Iterator[BaseException]:
    """The exception, and those in front of which it was raised; a body may have tied them into a ring."""
    seen: set[int] = set()
    each: BaseException | None = exc
    while each is not None and id(each) not in seen:
        yield each
        seen.add(id(each))
        each = each.__context__


def _is_shutdown(exc: BaseException) -> bool:
    """Whether the exception ends this process from outside: a signal to a pool child, or to a worker without one."""
    if isinstance(exc, Exception):
        return False
    if terminate_handler_fired() or isinstance(exc, WorkerShutdown | WorkerTerminate):
        return True
    return isinstance(exc, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


def _for_celery(exc: BaseException) -> BaseException:
    if isinstance(exc, MemoryError):
        return TaskOutOfMemory(str(exc) or "the task ran out of memory")
    return exc if isinstance(exc, Exception) else TaskExited(f"the task raised {exc!r}")


def may_pass(exc: BaseException) -> bool:
    """A refusal at the commit that another attempt may not meet: serialization failure, deadlock, shutdown."""
    if code := databases.sqlstate(exc):
        return isinstance(exc, Error) and code[:2] in ("40", "57", "08")
    return isinstance(exc, OperationalError | InterfaceError)


def write(run: Run, transition: Callable[[], bool]) -> None:
    """Settle after the rollback, again and again while the database is away.

    Raises:
        LostLease: this run is a zombie; another one owns the job.
        NotSettled: the database stays away; the node hands the job back when it returns.
    """
    done = persistently(run, transition)
    if done is None:
        run.log(logging.ERROR, "could not be settled: no database", "settle_failed")
        raise NotSettled("the database is away")
    if not done:
        run.log(logging.WARNING, "was given to another run", "lost_lease")
        raise LostLease("this run lost its lease")


def persistently(run: Run, action: Callable[[], bool]) -> bool | None:
    """Do it, again and again while the database is away; None: it stays away."""
    for pause in RECONNECT:
        time.sleep(pause)
        try:
            databases.tidy(run.using)
            return action()
        except Error as exc:
            run.log(logging.WARNING, f"is not settled yet: {exc}", "settle_retried")
            quietly(lambda: databases.drop(run.using))
    return None


def quietly(action: Callable[[], None]) -> None:
    try:
        action()
    except Error:
        logger.debug("closing a broken connection", exc_info=True, extra={"action": "connection_closed"})


def storable(run: Run, result: Any) -> Any:
    try:
        return jsonable(result, "the result")
    except (TypeError, ValueError) as exc:
        if run.job.marker_key is not None:
            # Those that replay it could not tell a repr from a result.
            raise type(exc)(
                f"{exc}; the result of a task with an idempotency_key is replayed, so it has to be JSON"
            ) from exc
        run.log(logging.WARNING, f"returned something that is kept as its repr: {exc}", "result_repr")
        return scrub(safe_repr(result), 4000)


def safe_repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception as exc:
        return f"<{type(value).__name__}, whose repr() raised {type(exc).__name__}>"


def _entry(run: Run, exc: BaseException, kind: str | None = None) -> dict[str, Any]:
    try:
        message = str(exc)
    except Exception:
        message = safe_repr(exc)
    text = "".join(traceback.format_exception(exc))
    return lifecycle.error_entry(kind or type(exc).__name__, message, text, attempt=run.job.lease)
