"""The part of the signals in the core: what happened to jobs is told to the receivers that there are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import connections

from jobs import signals
from jobs.doors import Extension


class Signals(Extension):
    def inserting(self, jobs: list[Any], using: str) -> None:
        if signals.enqueued.receivers:
            for job in jobs:
                job.is_awaited = True

    def committed(self, job: Any, app: Any) -> None:
        using = job._state.db
        # With autocommit off it is only written: nothing tells of the commit.
        if connections[using].in_atomic_block or connections[using].get_autocommit():
            signals.enqueued.tell(job, using)

    def happened(self, jobs: Iterable[Any], using: str, action: str) -> None:
        signal = getattr(signals, action, signals.rescued)
        if not signal.receivers:
            return
        for job in jobs:
            more: dict[str, Any] = {"action": action} if signal is signals.rescued else {}
            if signal is signals.cancelled:
                # It may have waited, and so be no run's error.
                more["error"] = job.error
            elif signal not in (signals.started, signals.succeeded):
                more["error"] = job.own_error
            signal.tell(job, using, **more)
