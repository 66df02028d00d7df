"""The part of the autoscaler in the core."""

from __future__ import annotations

from typing import Any

from jobs.doors import Extension

#: Seconds between two looks of the autoscaler at the processes.
SCALE = 1.0


class Autoscaling(Extension):
    def attaching(self, worker: Any) -> None:
        if worker.autoscaler_cls == "celery.worker.autoscale:Autoscaler":
            from jobs.contrib.autoscaling.scaler import Autoscaler

            worker.autoscaler_cls = Autoscaler

    def starting(self, worker: Any) -> None:
        if worker.autoscale and worker.use_eventloop:
            # Celery looks when a message comes. Jobs come without messages.
            worker.jobs_repeated.append((SCALE, lambda: worker.autoscaler.maybe_scale()))
