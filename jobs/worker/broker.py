"""How a worker uses its broker, which carries only what is not a job: it reconnects soon, and jobs run meanwhile."""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from types import FrameType
from typing import Any

from celery import bootsteps
from celery.worker import state

from jobs.calling.calls import name_of
from jobs.conf import is_ours
from jobs.conf.logs import logger
from jobs.lifecycle.worker_state import worker_state
from jobs.worker.pool import AsynPool
from jobs.worker.stop import BrokerSilent, call_to_broker
from jobs.worker.supervisor import REPLACE

#: Seconds between a worker's attempts to reach its broker again.
RECONNECT = {"interval_start": 1, "interval_step": 1, "interval_max": 3}


def _noted(change: Callable[..., Any], is_consumed: bool) -> Callable[..., Any]:
    """Wrap a change of the queues that the worker consumes: its processes claim from the same queues."""

    def change_and_note(queue: Any, *args: Any, **kwargs: Any) -> Any:
        done = change(queue, *args, **kwargs)
        name = name_of(queue)
        others = {*worker_state.queues} - {name}
        worker_state.queues = [*others, name] if is_consumed else [*others]
        return done

    return change_and_note


def _despite_leftovers(action: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an action of the consumer, so that a lost connection does not end the worker.

    When Redis goes away, kombu 5.7 closes a channel twice, and looks the second time for a connection that is not there
    any more: an ``AttributeError``, which would end the worker. So would an acknowledgement that comes too late; the
    broker delivers such a message again.
    """

    @wraps(action)
    def act(*args: Any, **kwargs: Any) -> Any:
        try:
            return action(*args, **kwargs)
        except AttributeError as exc:
            extra = worker_state.about("connection_lost")
            logger.warning("the connection to the broker is gone: %s", exc, exc_info=True, extra=extra)

    if (message := getattr(action, "__self__", None)) is not None:
        # Celery's pool recognizes an acknowledgement by this attribute, and runs it even while the pool stops.
        act.__self__ = message  # type: ignore[attr-defined]
    return act


class ConsumerStep(bootsteps.StartStopStep):
    """Changes how the worker uses its broker."""

    requires = ("celery.worker.consumer:Connection",)

    def __init__(self, c: Any, **kwargs: Any) -> None:
        super().__init__(c, **kwargs)
        c.add_task_queue = _noted(c.add_task_queue, True)
        c.cancel_task_queue = _noted(c.cancel_task_queue, False)
        ensure_connected, shutdown = c.ensure_connected, c.shutdown
        wait_for_soft_shutdown = c.controller.wait_for_soft_shutdown
        stock_handler = c.create_task_handler

        def create_task_handler(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
            handle = stock_handler(*args, **kwargs)

            def on_task_received(message: Any) -> Any:
                message.ack_log_error = _despite_leftovers(message.ack_log_error)
                message.reject_log_error = _despite_leftovers(message.reject_log_error)
                try:
                    return handle(message)
                except (LookupError, TypeError, ValueError) as exc:
                    if any(each.message is message for each in state.reserved_requests):
                        raise
                    # Celery cannot read it. It would end this worker, and each one that it is delivered to next.
                    return c.on_invalid_task(None, message, exc)

            return on_task_received

        def connect(connection: Any) -> Any:
            """Try more often than kombu, and replace dead processes meanwhile: the pool's event loop stands still."""
            ensure_connection = connection.ensure_connection

            def ensure(errback: Any = None, max_retries: Any = None, callback: Any = None, **more: Any) -> Any:
                def each_second() -> None:
                    if callback is not None:
                        callback()
                    _replace_dead(c)

                return ensure_connection(errback, max_retries, callback=each_second, **{**more, **RECONNECT})

            connection.ensure_connection = ensure
            return ensure_connected(connection)

        def shut_down() -> None:
            with suppress(BrokerSilent):
                shutdown()

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
        if threading.current_thread() is threading.main_thread():
            signal.signal(REPLACE, partial(_replace_in_call, c))
        c.ensure_connected = connect
        c.shutdown = shut_down
        c.on_connection_error_after_connected = _despite_leftovers(c.on_connection_error_after_connected)
        c.controller.wait_for_soft_shutdown = end_soft_shutdown
        c.create_task_handler = create_task_handler

    def start(self, c: Any) -> None:
        worker_state.queues = list(c.app.amqp.queues.consume_from)
        repeat(c.controller)


def repeat(worker: Any) -> None:
    """Begin what the worker's timer repeats. Celery 5.5 clears the timer when the connection to the broker breaks."""
    for entry in getattr(worker, "jobs_entries", ()):
        entry.cancel()
    worker.jobs_entries = [worker.timer.call_repeatedly(*each) for each in worker.jobs_repeated]


def _replace_dead(c: Any) -> None:
    pool = getattr(c.pool, "_pool", None)
    # A pool without an event loop has a thread for it.
    if worker_state.stopping_for is None and isinstance(pool, AsynPool):
        pool.maintain_without_hub()


def _replace_in_call(c: Any, number: int, frame: FrameType | None) -> None:
    """Handle the supervisor's signal: replace dead processes if this process is waiting for a silent broker."""
    if call_to_broker(frame) is None:
        return
    while frame is not None:
        if frame.f_globals.get("__name__") in ("billiard.pool", "celery.concurrency.asynpool"):
            # The pool is replacing processes itself.
            return
        frame = frame.f_back
    _replace_dead(c)
