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
