"""Exceptions that callers and task bodies may meet.

For a subclass of its ``Ignore`` Celery stores no result and runs no errback, and ``autoretry_for=(Exception,)`` does
not retry it.
"""

from collections.abc import Callable
from typing import Any

from celery.exceptions import Ignore

#: The largest number of seconds that a job may be put off: longer is a mistake (milliseconds?).
LONGEST = 10 * 366 * 86400.0


class Cancel(Ignore):
    """Raised in a task's body: roll back, and end the job ``cancelled``."""

    #: The type of the row's error.
    kind = "Cancelled"


class Replaced(Ignore):
    """``Task.replace()``: the body is done, and another task goes on under its id."""

    def __init__(self, signature: Any) -> None:
        super().__init__("replaced by another task")
        self.signature = signature


class Snooze(Ignore):
    """Raised in a task's body: roll back, and come back later. It uses no attempt.

    Parameters:
        seconds: how long to wait, by the database's clock; ten years at the most.
        reason: shown with the job.
    """

    def __init__(self, seconds: float, reason: str = "") -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise TypeError(f"Snooze takes seconds, a number, and not {seconds!r}")
        if not 0 <= seconds <= LONGEST:
            raise ValueError(f"Snooze({seconds!r}) must wait 0 seconds to ten years: pass seconds, not milliseconds")
        super().__init__(reason or f"snoozed for {seconds:g} s")
        self.seconds = float(seconds)

    def __reduce__(self) -> Any:
        return type(self), (self.seconds, str(self))


class Busy(Ignore):
    """Another caller holds it: a marker, a lock, a row, a unique key. If a body raises it, its job snoozes (jitter)."""

    #: Set by what will wake the job once it is free. It writes that the job waits. It gets the job, the seconds after
    #: which the job looks by itself, and its error.
    wait: Callable[[Any, float, dict[str, Any]], bool] | None = None


class UniqueBusy(Busy):
    """Another transaction holds the unique key and did not end in time; nothing was enqueued."""


class UniqueTaken(Exception):
    """A job cannot wait again: another job has taken its unique key, and does its work."""


class LostLease(Ignore):
    """This run no longer owns the job: its effects were rolled back."""


class NotSettled(Ignore):
    """There was no database to claim or to finish this run: its node gives the job back when there is one again."""


class EffectParked(Exception):
    """An external call may have happened: a person must decide. The job ends ``failed``, whatever ``autoretry_for``."""

    #: No rule of retries applies.
    ends_job = True


class NotIsolated(Exception):
    """A mail, an HTTP request, a cache write or a message inside of an open transaction (``JOBS["ISOLATION"]``)."""


class NotIsolatedWarning(UserWarning):
    """The same, as a warning."""


class IdempotencyMismatch(Exception):
    """Another job with other arguments has the same idempotency key. The job ends ``failed``, for good."""


class TaskOutOfMemory(Exception):
    """What Celery gets for a task's ``MemoryError``, which would stop its whole worker. The job ends ``failed``."""


class TaskExited(Exception):
    """What Celery gets for a task's ``sys.exit()``, which would look like a dead process. The job ends ``failed``."""


def for_celery(exc: BaseException) -> Exception:
    """The exception that Celery gets for it: one that does not end a process."""
    if isinstance(exc, MemoryError):
        return TaskOutOfMemory(str(exc) or "the task ran out of memory")
    return exc if isinstance(exc, Exception) else TaskExited(f"the task raised {exc!r}")
