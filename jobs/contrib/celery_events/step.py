"""The worker's main process hands on what its processes wrote."""

from typing import Any

from celery import bootsteps

from jobs.contrib.celery_events import pipe

#: Seconds between two looks for events of jobs.
FORWARD = 0.5


class ForwardStep(bootsteps.StartStopStep):
    requires = ("celery.worker.consumer:Connection", "celery.worker.consumer:Events")
    timer: Any = None

    def start(self, c: Any) -> None:
        # The dispatcher is another one after each connection.
        self.timer = c.timer.call_repeatedly(FORWARD, lambda: pipe.forward(c.event_dispatcher))
        pipe.forward(c.event_dispatcher)

    def stop(self, c: Any) -> None:
        if self.timer is not None:
            c.timer.cancel(self.timer)
