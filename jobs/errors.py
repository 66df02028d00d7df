"""Exceptions that callers and task bodies may meet."""

from celery.exceptions import Ignore


class LostLease(Ignore):
    """This run is no longer the one that owns the job: its effects were rolled back.

    A subclass of Celery's ``Ignore``: the message is acknowledged, no result is stored, no errback runs.
    """


class TaskOutOfMemory(Exception):
    """A task raised ``MemoryError``.

    The job ends ``failed`` with the type ``MemoryError``; Celery gets this instead, because a real
    ``MemoryError`` out of a task stops its whole worker (``celery.worker.request.Request.on_failure``).
    """


class TaskExited(Exception):
    """A task called ``sys.exit()``, or raised something else that is no ``Exception``.

    The job ends ``failed`` under that name; Celery would take it for the death of a process.
    """


class NotSettled(Ignore):
    """There was no database to claim or to settle this run: its node gives the job back when there is one again."""


class Cancel(Ignore):
    """Raised in a task's body: roll back, and end the job ``cancelled``.

    A subclass of Celery's ``Ignore``, because ``autoretry_for=(Exception,)`` would swallow anything else.
    """


class Snooze(Ignore):
    """Raised in a task's body: roll back, and come back later. It uses no attempt.

    Parameters:
        seconds: how long to wait, by the database's clock.
        reason: shown with the job.

    Raises:
        TypeError, ValueError: ``seconds`` is no number, or negative.
    """

    def __init__(self, seconds: float, reason: str = "") -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise TypeError(f"Snooze takes seconds, a number, and not {seconds!r}")
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"Snooze cannot wait {seconds!r} seconds")
        super().__init__(reason or f"snoozed for {seconds:g} s")
        self.seconds = float(seconds)


class Busy(Ignore):
    """Somebody else is at it: a marker, a lock, a row or a unique key. In a task's body the job snoozes, with jitter.

    A subclass of Celery's ``Ignore``, because ``autoretry_for=(Exception,)`` would use up an attempt.
    """


class UniqueBusy(Busy):
    """Another transaction holds the unique key and does not come to its end; nothing was enqueued."""


class UniqueTaken(Exception):
    """A job cannot wait again: another one has its unique key by now, and does its work."""


class EffectParked(Exception):
    """An external call may have happened, and a person has to say whether it did; the message says how.

    The job ends ``failed``; Celery's ``autoretry_for`` leaves this alone.
    """


class IdempotencyMismatch(Exception):
    """Another job with other arguments has the same idempotency key. The job ends ``failed``, for good."""
