"""Celery's autoscaler, which counts the processes that run jobs beside the requests of stock tasks."""

from celery.worker import autoscale

from jobs.lifecycle.worker_state import worker_state


class Autoscaler(autoscale.Autoscaler):
    @property
    def qty(self) -> int:
        busy = sum(not slot.is_shared for slot in worker_state.at_work())
        # If all are busy, more work may wait: one more process finds out.
        return super().qty + busy + (busy >= self.processes)
