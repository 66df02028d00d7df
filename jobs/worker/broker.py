"""How a worker uses its broker, which carries only what is not a job."""

from collections.abc import Callable
from typing import Any

from celery import bootsteps

from jobs.calling.calls import name_of
from jobs.conf import is_ours
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
        bucket_for_task = c.bucket_for_task
        # A message by name becomes a job at once: a rate limit of the runs must not delay its delivery.
        c.bucket_for_task = lambda task: None if is_ours(task) else bucket_for_task(task)
        c.reset_rate_limits()

    def start(self, c: Any) -> None:
        worker_state.queues = list(c.app.amqp.queues.consume_from)
        repeat(c.controller)


def repeat(worker: Any) -> None:
    """Begin what the worker's timer repeats. When the connection to the broker breaks, Celery 5.5 clears the timer."""
    for entry in getattr(worker, "jobs_entries", ()):
        entry.cancel()
    worker.jobs_entries = [worker.timer.call_repeatedly(*each) for each in worker.jobs_repeated]
