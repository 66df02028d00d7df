"""How a worker meets its broker: it comes back soon, and no message stops it or is gone in silence."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from typing import Any

from celery import bootsteps
from celery.concurrency import prefork
from celery.worker import state

from jobs import companion, pool, publisher, strays
from jobs.alarm import BrokerSilent
from jobs.board import board
from jobs.conf import conf
from jobs.databases import home
from jobs.message import VERSION, is_newer, version_of

logger = logging.getLogger("jobs")

#: Seconds between a worker's attempts to reach its broker again.
RECONNECT = {"interval_start": 1, "interval_step": 1, "interval_max": 3}

#: Seconds between two looks whether the first broker of the list is there again.
GO_BACK = 10.0


def _told(change: Callable[..., Any], consumed: bool) -> Callable[..., Any]:
    """Change what the worker consumes, and let the companion know."""

    def change_and_tell(queue: Any, *args: Any, **kwargs: Any) -> Any:
        done = change(queue, *args, **kwargs)
        companion.tell(queue=str(getattr(queue, "name", queue)), consumed=consumed)
        return done

    return change_and_tell


def _too_new(header: dict[str, Any]) -> ValueError:
    return ValueError(f"a job of version {version_of(header)!r}, and this worker runs {VERSION} at the most")


def _go_back(c: Any) -> None:
    """Callers start at the first broker of the list, and so do other workers: wait for messages where they are sent.

    Raises:
        ConnectionResetError: Celery connects anew, as after an outage.
    """
    if publisher.trouble_now(c.app, first_only=True) is None:
        logger.warning("this worker goes back to the first broker of its list", extra=board.about("broker_changed"))
        raise ConnectionResetError("the first broker of the list is there again")


def _despite_leftovers(action: Callable[..., Any]) -> Callable[..., Any]:
    """Let a lost connection be no more than that.

    When Redis goes away, kombu 5.7 closes a channel twice, and looks the second time for a connection that is not there
    any more: an ``AttributeError``, which would end the worker. So would an acknowledgement that comes too late. The
    broker delivers such a message again, and its job is taken by then.
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
    """Changes how the worker meets its broker.

    It comes back soon after an outage, and goes back to the first broker of its list. Its node's row follows ``celery
    control add_consumer`` and ``cancel_consumer``. And no message stops it, and none is gone in silence: what cannot be
    run here is put aside as a row.
    """

    requires = ("celery.worker.consumer:Connection",)

    def __init__(self, c: Any, **kwargs: Any) -> None:
        super().__init__(c, **kwargs)
        directory = strays.directory_of(c.app, os.getpid())
        handlers = c.create_task_handler
        c.add_task_queue = _told(c.add_task_queue, True)
        c.cancel_task_queue = _told(c.cancel_task_queue, False)

        def create_task_handler(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
            handle = handlers(*args, **kwargs)
            # Trouble with the connection is Celery's to handle.
            passing = publisher.link_errors((*c.connection_errors, *c.channel_errors))

            def on_task_received(message: Any) -> Any:
                message.ack_log_error = _despite_leftovers(message.ack_log_error)
                message.reject_log_error = _despite_leftovers(message.reject_log_error)
                try:
                    if isinstance(ours := message.headers.get("jobs"), dict):
                        if ours.get("db", home()) not in conf().DATABASES:
                            return pass_over(message, ours["db"])
                        if is_newer(ours):
                            return put_aside("NewerVersion", message, _too_new(ours))
                    return handle(message)
                except passing:
                    raise
                except Exception as exc:
                    if state.should_stop is not None or state.should_terminate is not None:
                        raise
                    return put_aside("MalformedMessage", message, exc)

            return on_task_received

        def put_aside(kind: str, message: Any, exc: Exception) -> None:
            try:
                about = strays.put_aside(directory, kind, message, exc)
            except OSError as full:
                # Not acknowledged: it takes one place of the prefetch, and is delivered again after a restart.
                logger.critical(
                    "a stray message cannot be put aside: %s", full, extra=board.about("stray_kept_waiting")
                )
                return
            text = "%s[%s] cannot be run here (%s): %r; its message is put aside"
            logger.error(text, about["task"], about["job"], kind, exc, extra=board.about("stray", **about))
            companion.tell(stray=True)
            acknowledge(message, about)

        def pass_over(message: Any, database: Any) -> None:
            """The row is the truth, and its own relay sends another message. A row of ours would be a second job."""
            about = {"job": str(message.headers.get("id")), "task": str(message.headers.get("task"))}
            text = "%s[%s] lives in the database %r, which is not in JOBS['DATABASES'] of this worker: left to others"
            logger.error(text, about["task"], about["job"], database, extra=board.about("passed_over", **about))
            acknowledge(message, about)

        def acknowledge(message: Any, about: dict[str, str]) -> None:
            # kombu's own line, if it cannot.
            message.ack_log_error(
                logging.LoggerAdapter(logger, board.about("ack_failed", **about)), c.connection_errors
            )

        wait_for_soft_shutdown = c.controller.wait_for_soft_shutdown
        # A pool without processes lets its bodies end by themselves: STOP_TIMEOUT bounds them, if it is set.
        what = "ending" if isinstance(c.pool, prefork.TaskPool) else "stopping"

        def end_soft_shutdown() -> None:
            wait_for_soft_shutdown()
            # What follows is a cold stop, which Celery announces when all is over. It waits for its pool without a
            # bound. And it is in a signal handler: if it came while the main thread wrote to RabbitMQ, py-amqp's lock
            # is taken, and Celery's basic.cancel waits for it for ever.
            companion.tell(**{what: True})

        ensure_connected = c.ensure_connected

        def connect(connection: Any) -> Any:
            # kombu's pauses grow to half a minute: so long would a broker that is back wait for this worker.
            connection.ensure_connection = partial(connection.ensure_connection, **RECONNECT)
            return ensure_connected(connection)

        shutdown = c.shutdown

        def shut_down() -> None:
            with suppress(BrokerSilent):
                shutdown()

        c.ensure_connected = connect
        c.shutdown = shut_down
        c.on_connection_error_after_connected = _despite_leftovers(c.on_connection_error_after_connected)
        c.controller.wait_for_soft_shutdown = end_soft_shutdown
        c.create_task_handler = create_task_handler
        c.on_decode_error = lambda message, exc: put_aside("DecodeError", message, exc)
        c.on_unknown_message = lambda body, message: put_aside("MalformedMessage", message, ValueError("no task"))
        c.on_unknown_task = lambda body, message, exc: put_aside("NotRegistered", message, exc)
        c.on_invalid_task = lambda body, message, exc: put_aside("InvalidTaskError", message, exc)

    def start(self, c: Any) -> None:
        pool.remember_written(c.pool)
        if publisher.is_elsewhere(c.connection):
            # Celery cancels what was added for a connection together with it.
            c.timer.call_repeatedly(GO_BACK, _go_back, (c,))
