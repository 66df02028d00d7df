"""One delivery of a job in the worker's main process."""

from __future__ import annotations

import logging
import time
from typing import Any

import celery.worker.request
from billiard.einfo import ExceptionWithTraceback
from celery import signals
from celery.exceptions import TimeLimitExceeded, WorkerLostError
from celery.utils.functional import noop
from celery.worker.state import active_requests, task_ready

from jobs import companion
from jobs.arguments import as_uuid
from jobs.board import board
from jobs.syncpoints import reach

logger = logging.getLogger("jobs")

#: Seconds after which RabbitMQ, by default, closes the channel of a message that was not acknowledged.
CONSUMER_TIMEOUT = 1800.0


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
        # Celery kills the process for a cold stop, or for a lost connection if it is set so: not its own fault.
        if self.is_job:
            companion.tell(ended=str(as_uuid(self.id)), why="cancelled")
        try:
            super().cancel(pool, signal=signal, emit_retry=emit_retry)
        except NotImplementedError:
            logger.info(
                "a pool without processes lets its bodies end by themselves", extra=board.about("not_cancelled")
            )

    def on_timeout(self, soft: bool, timeout: float) -> None:
        if soft or not self.is_job:
            super().on_timeout(soft, timeout)
            return
        logger.error(
            "%s[%s] ran longer than its hard time limit of %s s",
            self.name,
            self.id,
            timeout,
            extra=board.about("timed_out", job=str(as_uuid(self.id)), task=self.name),
        )
        companion.tell(ended=str(as_uuid(self.id)), why="timed_out", limit=timeout)
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
            extra=board.about("process_lost", job=str(as_uuid(self.id)), task=self.name),
        )
        self._end()

    def _end(self) -> None:
        task_ready(self)
        if self.has_row:
            self.acknowledge()
        else:
            # Whether it got its row is not known here; if it did, the next copy is a duplicate.
            self.reject(requeue=True)


def holding_time(app: Any) -> float | None:
    """Seconds after which the broker takes a message that was not acknowledged for lost."""
    driver = app.connection_for_read().transport.driver_type
    if driver == "redis":
        return float(app.conf.broker_transport_options.get("visibility_timeout") or 3600)
    return CONSUMER_TIMEOUT if driver == "amqp" else None


def acknowledge_long_ones(age: float) -> None:
    """The message of a job that runs for long has done its work: the row is the truth.

    Kept any longer, the broker would deliver it again (Redis), or close the channel with all others (RabbitMQ).
    """
    for request in list(active_requests):
        began = request.time_start if isinstance(request, Request) and request.has_row else None
        if began and time.time() - began > age and not request.acknowledged:
            request.release()


@signals.task_revoked.connect(dispatch_uid="jobs.request")
def _on_revoked(request: Any = None, **kwargs: Any) -> None:
    if getattr(request, "jobs", None):
        companion.tell(revoked=str(as_uuid(request.id)))
