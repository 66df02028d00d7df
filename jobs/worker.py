"""What ``celery worker`` gets from us: a node with its companion, kept connections, requests that know rows."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import celery.worker.request
from billiard.einfo import ExceptionWithTraceback
from celery import bootsteps, signals
from celery._state import get_current_task
from celery.exceptions import TimeLimitExceeded, WorkerLostError, WorkerShutdown
from celery.platforms import EX_FAILURE
from celery.utils.functional import noop
from celery.worker import state
from celery.worker.state import active_requests, maybe_shutdown, task_ready
from django.core.exceptions import ImproperlyConfigured

from jobs import checks, databases, publisher, strays
from jobs.arguments import as_uuid
from jobs.board import board
from jobs.companion import Companion
from jobs.instance import NotAdopted
from jobs.message import VERSION, is_newer, version_of
from jobs.syncpoints import reach

logger = logging.getLogger("jobs")

#: Seconds between two complaints while the database cannot be reached at the start of a worker.
PATIENCE = 10.0

_companion: Companion | None = None


#: Seconds between a worker's attempts to reach its broker again.
RECONNECT = {"interval_start": 1, "interval_step": 1, "interval_max": 3}

#: Seconds after which RabbitMQ, by default, closes the channel of a message that was not acknowledged.
CONSUMER_TIMEOUT = 1800.0


def _here(action: str, **more: Any) -> dict[str, Any]:
    """The fields of a line of this worker (see ``jobs.logs``)."""
    return {"action": action, "node": str(board.node), **more}


def install(app: Any) -> None:
    """Let workers of this Celery app run our steps; done when the first of our tasks is bound to the app."""
    app.steps["worker"].add(NodeStep)
    app.steps["consumer"].add(ConsumerStep)


class NodeStep(bootsteps.StartStopStep):
    """Registers this worker as a node, before it consumes."""

    def create(self, parent: Any) -> None:
        global _companion
        found = checks.for_worker(parent)
        errors = [message for message in found if message.is_serious()]
        for message in found:
            logger.log(message.level, str(message), extra={"action": "check", "check": message.id})
        if errors:
            raise ImproperlyConfigured(
                "; ".join(f"({message.id}) {message.msg} {message.hint or ''}" for message in errors)
            )
        _keep_connections(parent.app)
        databases.watch_links()
        queues = sorted(parent.app.amqp.queues.consume_from)
        tasks = sorted(name for name in parent.app.tasks if not name.startswith("celery."))
        _companion = Companion(parent.app, board, queues, tasks)
        _companion.start()

    def start(self, parent: Any) -> None:
        assert _companion is not None
        try:
            self._wait_until_registered(_companion)
        except NotAdopted as exc:
            logger.critical("this worker does not start: %s", exc, extra={"action": "not_adopted"})
            raise WorkerShutdown(EX_FAILURE) from None
        parent.timer.call_repeatedly(PATIENCE, self._watch)
        if holding := _holding_time(parent.app):
            parent.timer.call_repeatedly(min(PATIENCE, holding / 8), _acknowledge_long_ones, (holding / 2,))

    def close(self, parent: Any) -> None:
        """However the worker was told to stop: by a signal, by remote control, by an error."""
        if _companion is not None:
            _companion.tell(stopping=True)

    def _wait_until_registered(self, companion: Companion) -> None:
        complained = time.monotonic()
        while not companion.wait_until_registered(0.5):
            # Raises if the worker was told to stop meanwhile.
            maybe_shutdown()
            if time.monotonic() - complained > PATIENCE:
                complained = time.monotonic()
                logger.error("the worker waits for its database to register itself", extra=_here("node_waits"))

    def _watch(self) -> None:
        """Without its companion this worker would take messages and could claim nothing."""
        if _companion is not None and not _companion.is_alive():
            reason = _companion.last_words() or "it died"
            logger.critical("the companion is gone, this worker stops: %s", reason, extra=_here("companion_gone"))
            os.kill(os.getpid(), signal.SIGTERM)


def _holding_time(app: Any) -> float | None:
    """Seconds after which the broker takes a message that was not acknowledged for lost."""
    driver = app.connection_for_read().transport.driver_type
    if driver == "redis":
        return float(app.conf.broker_transport_options.get("visibility_timeout") or 3600)
    return CONSUMER_TIMEOUT if driver == "amqp" else None


def _acknowledge_long_ones(age: float) -> None:
    """The message of a job that runs for long has done its work: the row is the truth.

    Kept any longer, the broker would deliver it again (Redis), or close the channel with all others (RabbitMQ).
    """
    for request in list(active_requests):
        began = request.time_start if isinstance(request, Request) and request.has_row else None
        if began and time.time() - began > age and not request.acknowledged:
            request.release()


def _told(change: Callable[..., Any], consumed: bool) -> Callable[..., Any]:
    """Change what the worker consumes, and let the companion know."""

    def change_and_tell(queue: Any, *args: Any, **kwargs: Any) -> Any:
        done = change(queue, *args, **kwargs)
        if _companion is not None:
            _companion.tell(queue=str(getattr(queue, "name", queue)), consumed=consumed)
        return done

    return change_and_tell


def _too_new(header: dict[str, Any]) -> ValueError:
    return ValueError(f"a job of version {version_of(header)!r}, and this worker runs {VERSION} at the most")


def _go_back(c: Any) -> None:
    """Callers start at the first broker of the list, and so do other workers: wait for messages where they are sent.

    Raises:
        ConnectionResetError: Celery connects anew, as after an outage.
    """
    if publisher.is_first_up(c.app):
        logger.warning("this worker goes back to the first broker of its list", extra=_here("broker_changed"))
        raise ConnectionResetError("the first broker of the list is there again")


class ConsumerStep(bootsteps.StartStopStep):
    """Changes how the worker meets its broker.

    It comes back soon after an outage, and goes back to the first broker of its list. Its node's row follows ``celery
    control add_consumer`` and ``cancel_consumer``. And no message stops it, and none is gone in silence: what cannot be
    run here is put aside as a row.
    """

    requires = ("celery.worker.consumer:Connection",)

    def __init__(self, c: Any, **kwargs: Any) -> None:
        super().__init__(c, **kwargs)
        handlers = c.create_task_handler
        c.add_task_queue = _told(c.add_task_queue, True)
        c.cancel_task_queue = _told(c.cancel_task_queue, False)

        def create_task_handler(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
            handle = handlers(*args, **kwargs)
            # Trouble with the connection is Celery's to handle. (kombu takes Redis' KeyError for such.)
            trouble = (*c.connection_errors, *c.channel_errors)
            passing = tuple(kind for kind in trouble if not issubclass(kind, LookupError | ValueError | TypeError))

            def on_task_received(message: Any) -> Any:
                try:
                    if isinstance(ours := message.headers.get("jobs"), dict) and is_newer(ours):
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
            assert _companion is not None
            try:
                about = strays.put_aside(_companion.directory, kind, message, exc)
            except OSError as full:
                # Not acknowledged: it takes one place of the prefetch, and is delivered again after a restart.
                logger.critical("a stray message cannot be put aside: %s", full, extra=_here("stray_kept_waiting"))
                return
            text = "%s[%s] cannot be run here (%s): %r; its message is put aside"
            logger.error(text, about["task"], about["job"], kind, exc, extra=_here("stray", **about))
            _companion.tell(stray=True)
            # kombu's own line, if it cannot.
            message.ack_log_error(logging.LoggerAdapter(logger, _here("ack_failed", **about)), c.connection_errors)

        ensure_connected = c.ensure_connected

        def connect(connection: Any) -> Any:
            # kombu's pauses grow to half a minute: so long would a broker that is back wait for this worker.
            connection.ensure_connection = partial(connection.ensure_connection, **RECONNECT)
            return ensure_connected(connection)

        c.ensure_connected = connect
        c.create_task_handler = create_task_handler
        c.on_decode_error = lambda message, exc: put_aside("DecodeError", message, exc)
        c.on_unknown_message = lambda body, message: put_aside("MalformedMessage", message, ValueError("no task"))
        c.on_unknown_task = lambda body, message, exc: put_aside("NotRegistered", message, exc)
        c.on_invalid_task = lambda body, message, exc: put_aside("InvalidTaskError", message, exc)

    def start(self, c: Any) -> None:
        if publisher.is_elsewhere(c.connection):
            # Celery cancels what was added for a connection together with it.
            c.timer.call_repeatedly(PATIENCE, _go_back, (c,))


def _keep_connections(app: Any) -> None:
    """Keep Celery's Django fixup from closing the connections around each of our tasks.

    It does so because a time limit in mid-query leaves a connection that Django takes for usable;
    ``databases.tidy`` handles exactly that after each run. Other tasks keep the fixup's behaviour.
    """
    for fixup in getattr(app, "_fixups", ()):
        worker_fixup: Any = getattr(fixup, "worker_fixup", None)
        close = getattr(worker_fixup, "close_database", None)
        if close is None or getattr(close, "keeps_ours", False):
            continue

        def close_database(close: Any = close, **kwargs: Any) -> None:
            task = get_current_task()
            if not getattr(task, "is_transactional", False) or task.is_stock():
                close(**kwargs)

        close_database.keeps_ours = True  # type: ignore[attr-defined]
        worker_fixup.close_database = close_database


@signals.worker_init.connect(dispatch_uid="jobs.worker")
def _on_init(sender: Any = None, **kwargs: Any) -> None:
    """Tasks carry the default soft limit themselves; the pool must not add it to those that have none.

    A pool that knows a soft limit arms that one first, and a hard limit below it never strikes.
    """
    if sender is not None and sender.soft_time_limit == sender.app.conf.task_soft_time_limit:
        sender.soft_time_limit = None


@signals.worker_shutting_down.connect(dispatch_uid="jobs.worker")
def _on_shutting_down(how: str = "", **kwargs: Any) -> None:
    if _companion is not None:
        _companion.tell(stopping=True)


@signals.task_revoked.connect(dispatch_uid="jobs.worker")
def _on_revoked(request: Any = None, **kwargs: Any) -> None:
    if _companion is not None and getattr(request, "jobs", None):
        _companion.tell(revoked=str(as_uuid(request.id)))


class Request(celery.worker.request.Request):
    """A request whose end is decided by the job's row, and not by what happened to a process."""

    #: Hard and soft, in seconds; None where the task's own apply.
    time_limits: tuple[float | None, float | None]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        hard, soft = (self.time_limits[0] or self.task.time_limit), (self.time_limits[1] or self.task.soft_time_limit)
        if hard and soft and soft > hard:
            # A call's own time_limit below the task's soft limit: the pool arms the soft one first.
            self.time_limits = (hard, hard)

    @property
    def is_job(self) -> bool:
        return not self.task.is_stock()

    @property
    def has_row(self) -> bool:
        """A foreign message gets its row only when it is run."""
        return "jobs" in self.request_dict and self.is_job

    def maybe_expire(self) -> bool | None:
        # The claim decides, by the database's clock; this machine's may be wrong.
        return False if self.has_row else super().maybe_expire()

    def acknowledge(self) -> None:
        reach("before_ack")
        super().acknowledge()

    def release(self) -> None:
        """Acknowledge the message of a run that goes on. To Celery it is unacknowledged: a cold shutdown cancels it."""
        self.on_ack(logger, self._connection_errors)
        self._on_ack: Any = noop
        self._on_reject: Any = noop

    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> None:
        # A cold shutdown kills the pool's processes before it announces itself: not their own fault.
        if _companion is not None and self.is_job:
            _companion.tell(ended=str(as_uuid(self.id)), why="cancelled")
        try:
            super().cancel(pool, signal=signal, emit_retry=emit_retry)
        except NotImplementedError:
            logger.info("a pool without processes lets its bodies end by themselves", extra=_here("not_cancelled"))

    def on_timeout(self, soft: bool, timeout: float) -> None:
        if soft or not self.is_job:
            super().on_timeout(soft, timeout)
            return
        logger.error(
            "%s[%s] ran longer than its hard time limit of %s s",
            self.name,
            self.id,
            timeout,
            extra=_here("timed_out", job=str(as_uuid(self.id)), task=self.name),
        )
        if _companion is not None:
            _companion.tell(ended=str(as_uuid(self.id)), why="timed_out", limit=timeout)
        self._end()

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> None:
        exc = exc_info.exception
        if isinstance(exc, ExceptionWithTraceback):
            exc = exc.exc
        is_lost = isinstance(exc, WorkerLostError | TimeLimitExceeded | SystemExit | KeyboardInterrupt)
        if not is_lost or return_ok or not self.is_job or self._already_cancelled or self._already_revoked:
            super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)
            return
        # Celery would fire errbacks and fail the chain here, for a job that the companion gives back.
        logger.warning(
            "the process of %s[%s] is gone: %s",
            self.name,
            self.id,
            exc,
            extra=_here("process_lost", job=str(as_uuid(self.id)), task=self.name),
        )
        self._end()

    def _end(self) -> None:
        task_ready(self)
        if self.has_row:
            self.acknowledge()
        else:
            # Whether it got its row is not known here; if it did, the next copy is a duplicate.
            self.reject(requeue=True)
