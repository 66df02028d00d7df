"""The part of the signals in the core: what happened to jobs is told to the receivers that there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from celery import signals as celery
from django.db import connections

from jobs import signals
from jobs.doors import Extension


def sent_headers(job: Any, given: Mapping[str, Any], app: Any) -> Mapping[str, Any]:
    """The headers of a call: the caller's own, and those that receivers add or change."""
    if not celery.before_task_publish.receivers:
        return given
    from jobs.signals import of_celery

    return of_celery.announce(job, given, app)


class Signals(Extension):
    instead = {"jobs.calling.calls.sent_headers": "jobs.signals.doors.sent_headers"}

    def inserting(self, jobs: list[Any], using: str) -> None:
        if signals.enqueued.receivers or celery.after_task_publish.receivers:
            for job in jobs:
                job.is_awaited = True

    def committed(self, job: Any, app: Any) -> None:
        connection = connections[job._state.db]
        if not connection.in_atomic_block and not connection.get_autocommit():
            # It is only written: with autocommit off nothing tells of the commit.
            return
        signals.enqueued.tell(job, connection.alias)
        if celery.after_task_publish.receivers:
            from jobs.signals import of_celery

            of_celery.tell(job, app)

    def happened(self, jobs: Iterable[Any], using: str, action: str) -> None:
        signal = getattr(signals, action, signals.rescued)
        if not signal.receivers:
            return
        for job in jobs:
            more: dict[str, Any] = {"action": action} if signal is signals.rescued else {}
            if signal is signals.cancelled:
                # A waiting job may have been cancelled: then the error is of no run.
                more["error"] = job.error
            elif signal not in (signals.started, signals.succeeded):
                more["error"] = job.own_error
            signal.tell(job, using, **more)


class Doors:
    """What an extension may have for Celery's signals."""

    def publishing(self) -> AbstractContextManager[Any]:
        """A context around the receivers of the signals that Celery sends for a call."""
        return nullcontext()
