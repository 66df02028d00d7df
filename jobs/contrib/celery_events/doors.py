"""The part of Celery's events in the core."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from celery import signals

from jobs.doors import Extension


def _on_init(sender: Any = None, **kwargs: Any) -> None:
    # The pipe is made here, before the worker forks.
    from jobs.contrib.celery_events.pipe import ForwardStep

    if sender is not None:
        sender.app.steps["consumer"].add(ForwardStep)


class CeleryEvents(Extension):
    def ready(self) -> None:
        signals.worker_init.connect(_on_init, dispatch_uid=__name__)

    @property
    def controls(self) -> Mapping[str, Callable[..., Any]]:  # type: ignore[override]
        from jobs.contrib.celery_events import pipe

        return {"enable_events": pipe.enable_events}

    @property
    def tells(self) -> Any:
        from jobs.contrib.celery_events import pipe

        return pipe
