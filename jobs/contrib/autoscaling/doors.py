"""The part of the autoscaler in the core."""

from __future__ import annotations

from typing import Any

from celery import signals

from jobs.doors import Extension

#: Seconds between two looks of the autoscaler at the processes.
SCALE = 1.0


def _on_init(sender: Any = None, **kwargs: Any) -> None:
    from jobs.contrib.autoscaling.scaler import Autoscaler
    from jobs.worker.bootsteps import NodeStep

    # The core has added its own if the worker has tasks of ours.
    is_wanted = sender is not None and NodeStep in sender.app.steps["worker"]
    if is_wanted and sender.autoscaler_cls == "celery.worker.autoscale:Autoscaler":
        sender.autoscaler_cls = Autoscaler


class Autoscaling(Extension):
    def ready(self) -> None:
        signals.worker_init.connect(_on_init, dispatch_uid=__name__)

    def starting(self, worker: Any) -> None:
        if worker.autoscale and worker.use_eventloop:
            # Celery looks when a message comes. Jobs come without messages.
            worker.jobs_repeated.append((SCALE, lambda: worker.autoscaler.maybe_scale()))
