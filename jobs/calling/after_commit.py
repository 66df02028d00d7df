"""What follows a commit: one hook notifies the workers of its jobs' queues, and sends the signals."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery import signals as celery_signals
from django.db import connections

from jobs import extensions, signals
from jobs.calling import request
from jobs.conf.syncpoints import reach
from jobs.lifecycle import wakeups
from jobs.models import Job


class AfterCommit:
    """The on-commit hook of one savepoint level: notifies, sends the signals, and never raises."""

    def __init__(self, using: str) -> None:
        # Django names a hook that raised.
        self.__qualname__ = "jobs.calling.after_commit.AfterCommit"
        self.using = using
        self.queues: set[str] = set()
        self.recorded: list[tuple[Celery, Job]] = []

    def __call__(self) -> None:
        reach("before_ring")
        wakeups.notify(self.using, self.queues)
        for app, job in self.recorded:
            job.forget_computed()
            for committed in extensions.through("committed"):
                committed(job)
            signals.enqueued.tell(job, self.using)
            if celery_signals.after_task_publish.receivers:
                _tell_celery(app, job)


def hook_of(connection: Any) -> AfterCommit | None:
    """The hook for the current savepoint level, registered; None if nothing tells us of the commit.

    A hook goes with the savepoints that were open when it was registered. If an inner block rolls back, its
    notification is not needed; if one is lost, a poll finds the job.
    """
    if not connection.in_atomic_block:
        # Autocommit: the INSERT is the commit. Autocommit off: only the caller knows, and a poll finds the job.
        return AfterCommit(connection.alias) if connection.get_autocommit() else None
    if connection.run_on_commit:
        sids, function = connection.run_on_commit[-1][:2]
        if isinstance(function, AfterCommit) and sids == set(connection.savepoint_ids):
            return function
    hook = AfterCommit(connection.alias)
    connection.on_commit(hook, robust=True)
    return hook


def notify_after(using: str, name: str) -> None:
    """Notify of something that is no job, after the commit of the current transaction."""
    if (hook := hook_of(connections[using])) is not None:
        hook.queues.add(name)
        if not connections[using].in_atomic_block:
            hook()


def _tell_celery(app: Celery, job: Job) -> None:
    options = job.options
    with extensions.around("publishing"):
        celery_signals.after_task_publish.send(
            sender=job.task,
            body=(job.args, job.kwargs, request.embedded(options)),
            headers={**request.headers_of(job, app, options), **job.headers},
            exchange=options.get("exchange", ""),
            routing_key=options.get("routing_key", job.queue),
        )
