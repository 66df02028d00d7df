"""One claimed run of a job: what the pipeline, the body and the ledger of calls know of it, and what is said of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async
from django.db import Error
from django.db.transaction import TransactionManagementError

from jobs import extensions
from jobs.conf import logs
from jobs.errors import Cancel, LostLease
from jobs.lifecycle import transitions
from jobs.lifecycle.worker_state import ProcessState
from jobs.models import Job, State
from jobs.store import databases

#: Seconds between the attempts to reach a database that is away, and how often.
RECONNECT = (0.0, 0.1, 0.4, *[0.5] * 14)


class Suspended(BaseException):
    """A body waits for a time or an event: its run ends, and its job waits. ``except Exception`` does not catch it.

    Parameters:
        text: for the log.
        write: the fenced transition; False: the run no longer owns the job.
    """

    def __init__(self, text: str, write: Callable[[], bool]) -> None:
        super().__init__(text)
        self.write = write


class NotHere(Exception):
    """This process cannot run the job, and another one may: the job waits for that one, and no counter changes."""

    #: Seconds until it is tried again, at the most: they double with each claim, up to the longest; and why it waits
    #: (``Job.waits_for``), if code must find such jobs.
    pause = longest = 5.0
    waits_for: str | None = None


@dataclass(eq=False)
class Run:
    task: Any
    job: Job
    #: The database of the job.
    using: str
    #: Where the process shows what it runs.
    slot: ProcessState
    #: The request that the body sees (``jobs.calling.request``); None if none can be made from the row.
    request: Any = None
    #: What ``Task.retry()`` sent: the last is this job again, and each other one becomes a job of its own.
    planned: list[Job] = field(default_factory=list)
    #: Whether the body, or Celery's autoretry, called ``Task.retry()``, and so decides how often.
    retries_itself: bool = False
    #: Celery's ``Task.retry()`` is about to call ``apply_async`` for it.
    is_retrying: bool = False
    #: For a coroutine that is over: returns its result, or raises its exception.
    body: Callable[..., Any] | None = None
    #: Whether the calling code is part of the transaction that completes the job. A coroutine is not.
    is_atomic: bool = True
    #: Makes a call that may block, for a body that must not block.
    aside: Callable[[Callable[[], Any]], Any] = lambda call: call()
    #: For a coroutine: awaits a call on the thread that has the run's connection.
    on_thread: Callable[[Callable[[], Any]], Awaitable[Any]] | None = None
    #: For a coroutine: the writes under way on that thread. They are done before the run ends.
    writes: set[Any] | None = None
    #: What the body returned; and what it has made by ``Task.commit()``, which it has to return.
    result: Any = None
    promised: Any = None
    #: The signature that takes its place (``Task.replace()``).
    replacement: Any = None
    #: The fencing token of what the run holds (``Task.holding``).
    lock_token: int | None = None
    #: What is to be done when it is over, whether its transaction was committed or not; by names.
    afterwards: dict[str, Callable[[], Any]] = field(default_factory=dict)
    #: Whether Celery's result backend is told of it, or has been told something by its body.
    tells_backend: bool = True
    #: What became of it, in one word, as the log says it; None while that is not known.
    outcome: str | None = None
    #: The same as Celery knows it: a state of Celery's, and what it was told in place of a result.
    state: str | None = None
    told: BaseException | None = None
    #: When it began, and when the body did, on the monotonic clock.
    entered: float = field(default_factory=time.monotonic)
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.is_atomic = self.task.atomic and not self.task.is_async

    def report(self, level: int, text: str, action: str, **more: Any) -> None:
        """Say what became of the run, in the log and to extensions."""
        runtime = round(time.monotonic() - self.began, 6)
        self.outcome = report(self.job, self.using, action, text, level, runtime=runtime, **more)

    def end(self) -> None:
        for name in sorted(self.afterwards):
            self.afterwards[name]()

    def checkpoint(self) -> None:
        """Ask the database whether this run should go on."""
        # The connection may have been ended while the body did something else.
        note = databases.patiently(self.using, partial(transitions.asked_to_end, self.job))
        if note is not None:
            raise Cancel(note.reason)
        if not transitions.owns(self.job):
            raise LostLease("this run lost its lease")


async def on_thread(call: Callable[[], Any]) -> Any:
    """Call it, from a coroutine, over the run's own connection.

    The job's row names that session: a process that takes the job from a zombie ends the session.
    """
    run = current_run()
    return await (sync_to_async(call)() if run is None or run.on_thread is None else run.on_thread(call))


def persistently(run: Run, action: Callable[[], bool]) -> bool | None:
    """Do it, again and again while the database is away; None: it stays away."""
    for pause in RECONNECT:
        time.sleep(pause)
        try:
            databases.tidy(run.using)
            return action()
        except Error as exc:
            if databases.in_test(run.using):
                raise TransactionManagementError(
                    "a statement outside of any savepoint failed, and with it the transaction of the whole test: test "
                    "this with TransactionTestCase (pytest: django_db(transaction=True))"
                ) from exc
            logs.log(logging.WARNING, run.job, f"is not finished yet: {exc}", "finish_retried")
            databases.drop(run.using)
    return None


def report(job: Job, using: str, action: str, text: str, level: int = logging.INFO, **more: Any) -> str:
    """Say what became of a run, after its end was committed; returns it in one word.

    The row decides, not what was wanted: a run that asked for a retry may have been asked to end, and a job that
    should go back may have reached its limit.
    """
    if job.state == State.CANCELLED and action != "cancelled":
        action, text, level = "cancelled", "cancelled: it was asked to end", logging.INFO
    elif job.state == State.FAILED and action != "failed":
        error = job.own_error
        assert error is not None
        action, text, level = "failed", f"failed: {error['type']}: {error['message']}", logging.ERROR
    # Each run comes here twice, and mostly nobody reads of it.
    if logs.logger.isEnabledFor(level):
        logs.log(level, job, text, action, **more)
    for happened in extensions.through("happened"):
        happened([job], using, action)
    return action


# Which run the calling code is part of, however deep in a body it is called

current: ContextVar[Run | None] = ContextVar("jobs.current", default=None)


def current_run() -> Run | None:
    """The run of the job that runs here; None outside of runs, and in threads that a body started."""
    return current.get()


def current_job() -> Job | None:
    """The job that runs here, as it was claimed."""
    run = current.get()
    return None if run is None else run.job
