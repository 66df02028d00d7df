"""The part of Celery's signals in the core: they are sent where a message would be. What they ask other extensions."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from celery import signals

from jobs.doors import Extension


class CallSignals(Extension):
    instead = {"jobs.calling.calls.own_headers": "jobs.contrib.call_signals.publishing.own_headers"}

    def inserting(self, jobs: list[Any], using: str) -> None:
        if signals.after_task_publish.receivers:
            for job in jobs:
                job.is_awaited = True

    def committed(self, job: Any, app: Any) -> None:
        if signals.after_task_publish.receivers:
            from jobs.contrib.call_signals import publishing

            publishing.tell(job, app)


class Doors:
    """What an extension may have for these signals."""

    def publishing(self) -> AbstractContextManager[Any]:
        """A context around the receivers of the signals that Celery sends for a call."""
        return nullcontext()
