"""Signals: what happens to jobs, told to your code while it happens.

Django's signals, whose sender is the task's name; ``connect`` takes the task itself as well::

    @receiver(signals.failed, sender=send_welcome_email)
    def alert(job, error, **kwargs): ...

Every receiver gets ``job`` (a :class:`jobs.models.Job`), ``using`` (the alias of its database), and what is said below.
The instance has the values that were written; what the database computed (times, counts) is read from the row when you
ask for it, and may be newer by then.

A receiver is called after the commit, at most once, and not at all if the process dies at that moment; what it raises
is logged and changes nothing. So: metrics, alerts, caches. What must happen belongs into the task's own transaction, or
into a job. Keep receivers short: the process's next job, or the rescue of other jobs, waits for them.

``started`` is followed by exactly one of ``succeeded``, ``retried``, ``failed``, ``cancelled`` and ``rescued``, unless
a process dies before it sends that.
"""

from __future__ import annotations

import logging
from typing import Any

from django.dispatch import Signal

from jobs.conf.logs import log


class JobSignal(Signal):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def connect(self, receiver: Any, sender: Any = None, *args: Any, **kwargs: Any) -> None:
        """As Django's; ``sender`` is a task or its name, None stands for all."""
        super().connect(receiver, _sender(sender), *args, **kwargs)

    def disconnect(self, receiver: Any = None, sender: Any = None, *args: Any, **kwargs: Any) -> bool:
        return super().disconnect(receiver, _sender(sender), *args, **kwargs)

    def tell(self, job: Any, using: str, **more: Any) -> None:
        """Call the receivers. Never raises what they raise; costs nothing where there are none."""
        if not self.receivers:
            return
        try:
            answers: list[tuple[Any, Any]] = self.send_robust(
                _senders.setdefault(job.task, job.task), job=job, using=using, **more
            )
        except Exception as exc:
            # Django's own report of a receiver that failed can fail.
            answers = [(self, exc)]
        for receiver, answer in answers:
            if isinstance(answer, Exception):
                # Its traceback is in the log as well: Django writes it to "django.dispatch".
                name = getattr(receiver, "__qualname__", type(receiver).__name__)
                text = f"a receiver of the signal {self.name} failed: {name}: {answer!r}"
                log(logging.ERROR, job, text, "receiver_failed", signal=self.name, receiver=name)


#: The names of tasks, each once and kept: Django compares senders by identity.
_senders: dict[str, str] = {}


def _sender(task: Any) -> str | None:
    name = task if task is None or isinstance(task, str) else task.name
    return None if name is None else _senders.setdefault(name, name)


#: The job was recorded, and its transaction committed. Not sent with autocommit off (nothing tells of the commit),
#: and not for a call by name, which gets its row in a worker. A retry is the same job, and is not enqueued again.
enqueued = JobSignal("enqueued")

#: A worker claimed the job; its body comes next, and is not in its transaction yet.
started = JobSignal("started")

#: The body's transaction was committed, together with the job's completion. ``job.result`` is the result.
succeeded = JobSignal("succeeded")

#: Another attempt comes: the body asked for it (``retry()``, ``autoretry_for``), or ``JOBS["RETRY"]`` gives one.
#: ``error``: the entry of ``Job.errors``.
retried = JobSignal("retried")

#: The job ended ``failed``: by its body, or because its crashes or losses reached their limit.
#: ``error``: the entry of ``Job.errors``.
failed = JobSignal("failed")

#: The job ended ``cancelled``: by its body, by hand, by remote control, or because it expired.
#: ``error``: its ``type`` is ``Cancelled``, ``Revoked``, ``Killed`` or ``Expired``. ``jobs adopt --cancel`` sends none.
cancelled = JobSignal("cancelled")

#: A run ended without a result, and the job waits again. ``action``: ``"snoozed"`` (its body asked for it, or found
#: something busy), ``"rescued"`` (its worker died, or no process ran it), ``"crashed"`` (its process died in it) or
#: ``"handed_back"`` (its worker stopped, its database went away, its body raised ``Reject(requeue=True)``, or this
#: worker cannot run it: it lacks the key of its arguments, or is of an earlier release).
#: ``error``: the entry of ``Job.errors``, or why this worker cannot run it; else None.
rescued = JobSignal("rescued")
