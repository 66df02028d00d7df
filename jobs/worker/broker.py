"""How a worker uses its broker, which carries only what is not a job."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from celery import bootsteps
from celery.worker import state

from jobs.calling.calls import name_of
from jobs.conf import is_ours
from jobs.conf.logs import logger
from jobs.lifecycle.worker_state import worker_state


def _noted(change: Callable[..., Any], is_consumed: bool) -> Callable[..., Any]:
    """Wrap a change of the queues that the worker consumes: its processes claim from the same queues."""

    def change_and_note(queue: Any, *args: Any, **kwargs: Any) -> Any:
        done = change(queue, *args, **kwargs)
        name = name_of(queue)
        others = {*worker_state.queues} - {name}
        worker_state.queues = [*others, name] if is_consumed else [*others]
        return done

    return change_and_note


class ConsumerStep(bootsteps.StartStopStep):
    """Changes how the worker uses its broker."""

    requires = ("celery.worker.consumer:Connection",)

    def __init__(self, c: Any, **kwargs: Any) -> None:
        super().__init__(c, **kwargs)
        c.add_task_queue = _noted(c.add_task_queue, True)
        c.cancel_task_queue = _noted(c.cancel_task_queue, False)
        wait_for_soft_shutdown = c.controller.wait_for_soft_shutdown

        def end_soft_shutdown() -> None:
            # Celery waits only for requests that it knows; it does not know of jobs.
            worker_state.note_stop()
            timeout = c.app.conf.worker_soft_shutdown_timeout
            if not state.active_requests and timeout and worker_state.at_work():
                # As Celery says it.
                text = f"Initiating Soft Shutdown, terminating in {timeout} seconds"
                logger.warning(text, extra=worker_state.about("soft_stop"))
                deadline = time.monotonic() + timeout
                while time.monotonic() < deadline and worker_state.at_work():
                    time.sleep(0.05)
            wait_for_soft_shutdown()
            # What follows is a cold stop, which waits for its pool without a bound.
            worker_state.note_end()
            # As Celery does with its requests in a cold stop; the supervisor kills a process that ignores the signal.
            for slot in worker_state.at_work():
                if slot.pid != os.getpid():
                    slot.signal(signal.SIGTERM)

        bucket_for_task = c.bucket_for_task
        # A message by name becomes a job at once: a rate limit of the runs must not delay its delivery.
        c.bucket_for_task = lambda task: None if is_ours(task) else bucket_for_task(task)
        c.reset_rate_limits()
        c.controller.wait_for_soft_shutdown = end_soft_shutdown

    def start(self, c: Any) -> None:
        worker_state.queues = list(c.app.amqp.queues.consume_from)
        repeat(c.controller)


def repeat(worker: Any) -> None:
    """Begin what the worker's timer repeats. When the connection to the broker breaks, Celery 5.5 clears the timer."""
    for entry in getattr(worker, "jobs_entries", ()):
        entry.cancel()
    worker.jobs_entries = [worker.timer.call_repeatedly(*each) for each in worker.jobs_repeated]
