"""The part of Celery's events in the core."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jobs.doors import Extension


class CeleryEvents(Extension):
    def attaching(self, worker: Any) -> None:
        # The pipe is made here, before the worker forks.
        from jobs.contrib.celery_events.pipe import ForwardStep

        worker.app.steps["consumer"].add(ForwardStep)

    @property
    def controls(self) -> Mapping[str, Callable[..., Any]]:  # type: ignore[override]
        from jobs.contrib.celery_events import pipe

        return {"enable_events": pipe.enable_events}

    @property
    def tells(self) -> Any:
        from jobs.contrib.celery_events import pipe

        return pipe
