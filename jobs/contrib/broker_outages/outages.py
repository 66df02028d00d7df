"""A worker whose broker is away: it reconnects soon, jobs run meanwhile. No message that it cannot read ends it."""

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from types import FrameType
from typing import Any

from celery import bootsteps
from celery.worker import state

from jobs.conf.logs import logger
from jobs.contrib.broker_outages.alarm import BrokerSilent, alarm, call_to_broker
from jobs.lifecycle.worker_state import worker_state
from jobs.worker.pool import AsynPool
from jobs.worker.supervisor import REPLACE

#: Seconds between a worker's attempts to reach its broker again.
RECONNECT = {"interval_start": 1, "interval_step": 1, "interval_max": 3}


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


class AlarmStep(bootsteps.StartStopStep):
    def close(self, parent: Any) -> None:
        """Called however the worker was told to stop."""
        alarm.stop_steps()


class OutageStep(bootsteps.StartStopStep):
    """Changes how the worker uses a broker that may be away."""

    requires = ("celery.worker.consumer:Connection",)

    def __init__(self, c: Any, **kwargs: Any) -> None:
        super().__init__(c, **kwargs)
        ensure_connected, shutdown = c.ensure_connected, c.shutdown
        stock_handler = c.create_task_handler

        def create_task_handler(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
            handle = stock_handler(*args, **kwargs)

            def on_task_received(message: Any) -> Any:
                message.ack_log_error = _despite_leftovers(message.ack_log_error)
                message.reject_log_error = _despite_leftovers(message.reject_log_error)
                try:
                    # Celery looks at the limits only after the message has a place in the pool, and that place is then
                    # never free again.
                    hard, soft = message.headers.get("timelimit") or (None, None)
                    sum(limit or 0 for limit in (hard, soft))
                    return handle(message)
                except (ArithmeticError, LookupError, TypeError, ValueError) as exc:
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

        if threading.current_thread() is threading.main_thread():
            signal.signal(REPLACE, partial(_replace_in_call, c))
        c.ensure_connected = connect
        c.shutdown = shut_down
        c.on_connection_error_after_connected = _despite_leftovers(c.on_connection_error_after_connected)
        c.create_task_handler = create_task_handler


def _replace_dead(c: Any) -> None:
    """Replace dead processes while the event loop stands still, because the broker is away."""
    pool = getattr(c.pool, "_pool", None)
    # A pool without an event loop has a thread for it.
    if worker_state.stopping_for is None and isinstance(pool, AsynPool):
        # The event loop stands still: no stock task would come to a process that offers itself.
        worker_state.stock_waits = False
        pool.maintain_pool()
        for process in list(pool._waiting_to_start):
            # Read its message that it is up. Else the event loop, when it goes on, kills it as one that did not start.
            pool.process_flush_queues(process)


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
