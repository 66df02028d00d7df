"""How a worker meets its broker, which is for what is not a job: it comes back soon, and jobs go on without it."""

from __future__ import annotations

import logging
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

from jobs import companion
from jobs.alarm import BrokerSilent, call_to_broker
from jobs.board import IDLE, Occupied, board
from jobs.companion import REPLACE
from jobs.events import Forwarder
from jobs.pool import AsynPool, BlockingPool

logger = logging.getLogger("jobs")

#: Seconds between a worker's attempts to reach its broker again.
RECONNECT = {"interval_start": 1, "interval_step": 1, "interval_max": 3}

#: Seconds between two looks for events of jobs.
FORWARD = 0.5


def _told(change: Callable[..., Any], is_consumed: bool) -> Callable[..., Any]:
    """Change what the worker consumes; the processes claim from the same queues."""

    def change_and_tell(queue: Any, *args: Any, **kwargs: Any) -> Any:
        done = change(queue, *args, **kwargs)
        name = str(getattr(queue, "name", queue))
        others = {*board.queues} - {name}
        board.queues = sorted(others | {name} if is_consumed else others)
        companion.tell(queues=True)
        return done

    return change_and_tell


def _despite_leftovers(action: Callable[..., Any]) -> Callable[..., Any]:
    """Let a lost connection be no more than that.

    When Redis goes away, kombu 5.7 closes a channel twice, and looks the second time for a connection that is not there
    any more: an ``AttributeError``, which would end the worker. So would an acknowledgement that comes too late; the
    broker delivers such a message again.
    """

    @wraps(action)
    def act(*args: Any, **kwargs: Any) -> Any:
        try:
            return action(*args, **kwargs)
        except AttributeError as exc:
            extra = board.about("connection_lost")
            logger.warning("the connection to the broker is gone: %s", exc, exc_info=True, extra=extra)

    if (message := getattr(action, "__self__", None)) is not None:
        # By this Celery's pool knows an acknowledgement, and lets it out while it stops.
        act.__self__ = message  # type: ignore[attr-defined]
    return act


class ConsumerStep(bootsteps.StartStopStep):
    """Changes how the worker meets its broker."""

    requires = ("celery.worker.consumer:Connection", "celery.worker.consumer:Events")

    def __init__(self, c: Any, **kwargs: Any) -> None:
        super().__init__(c, **kwargs)
        c.add_task_queue = _told(c.add_task_queue, True)
        c.cancel_task_queue = _told(c.cancel_task_queue, False)
        ensure_connected, shutdown = c.ensure_connected, c.shutdown
        wait_for_soft_shutdown = c.controller.wait_for_soft_shutdown
        handlers = c.create_task_handler

        def create_task_handler(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
            handle = handlers(*args, **kwargs)

            def on_task_received(message: Any) -> Any:
                message.ack_log_error = _despite_leftovers(message.ack_log_error)
                message.reject_log_error = _despite_leftovers(message.reject_log_error)
                return handle(message)

            return on_task_received

        def connect(connection: Any) -> Any:
            connection.ensure_connection = _meanwhile(c, connection.ensure_connection)
            return ensure_connected(connection)

        def shut_down() -> None:
            with suppress(BrokerSilent):
                shutdown()

        def end_soft_shutdown() -> None:
            # Celery waits if it knows of requests; of jobs it does not.
            board.note_stop()
            if not state.active_requests:
                _wait_for_jobs(c.app.conf.worker_soft_shutdown_timeout)
            wait_for_soft_shutdown()
            # What follows is a cold stop, which waits for its pool without a bound.
            companion.tell(ending=True)
            _end_bodies()

        if threading.current_thread() is threading.main_thread():
            signal.signal(REPLACE, partial(_replace_in_call, c))
        c.ensure_connected = connect
        c.shutdown = shut_down
        c.on_connection_error_after_connected = _despite_leftovers(c.on_connection_error_after_connected)
        c.controller.wait_for_soft_shutdown = end_soft_shutdown
        c.create_task_handler = create_task_handler

    def start(self, c: Any) -> None:
        board.queues = sorted(c.app.amqp.queues.consume_from)
        companion.tell(queues=True)
        self.forwarder = Forwarder(c.event_dispatcher)
        self.forwarder.forward()
        self.timer = c.timer.call_repeatedly(FORWARD, self._forward, (c,))

    def _forward(self, c: Any) -> None:
        self.forwarder._dispatcher = c.event_dispatcher
        self.forwarder.forward()

    def stop(self, c: Any) -> None:
        if (timer := getattr(self, "timer", None)) is not None:
            c.timer.cancel(timer)


def _at_work() -> list[Occupied]:
    return [slot for slot in board.occupied() if slot.phase != IDLE]


def _wait_for_jobs(timeout: float) -> None:
    if not timeout or not _at_work():
        return
    # As Celery says it.
    text = f"Initiating Soft Shutdown, terminating in {timeout} seconds"
    logger.warning(text, extra=board.about("soft_stop"))
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline and _at_work():
        time.sleep(0.05)


def _end_bodies() -> None:
    """As Celery does with its requests in a cold stop; who shrugs it off is killed by the companion."""
    for slot in _at_work():
        if slot.pid != os.getpid():
            with suppress(ProcessLookupError):
                os.kill(slot.pid, signal.SIGTERM)


def _meanwhile(c: Any, ensure_connection: Callable[..., Any]) -> Callable[..., Any]:
    """Try more often than kombu, and replace dead processes meanwhile: the pool's event loop stands still."""

    def ensure(errback: Any = None, max_retries: Any = None, callback: Any = None, **kwargs: Any) -> Any:
        def each_second() -> None:
            if callback is not None:
                callback()
            _replace_dead(c)

        return ensure_connection(errback, max_retries, callback=each_second, **{**kwargs, **RECONNECT})

    return partial(ensure)


def _replace_dead(c: Any) -> None:
    pool = getattr(c.pool, "_pool", None)
    if pool is None or board.stopping_for is not None:
        return
    if isinstance(pool, AsynPool):
        pool.maintain_without_hub()
    elif isinstance(pool, BlockingPool):
        pool.maintain_pool()


def _replace_in_call(c: Any, number: int, frame: FrameType | None) -> None:
    """The companion sees a dead process that nobody replaces. Is it because the broker took a call and says nothing?"""
    if call_to_broker(frame) is not None and not _is_in_pool(frame):
        _replace_dead(c)


def _is_in_pool(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__") in ("billiard.pool", "celery.concurrency.asynpool"):
            return True
        frame = frame.f_back
    return False
