"""What ``celery worker`` gets from us: a node with its companion, kept connections, requests that know rows."""

from __future__ import annotations

import logging
import os
import signal
import time
from typing import Any

import celery.worker.request
from billiard.einfo import ExceptionWithTraceback
from celery import bootsteps, signals
from celery._state import get_current_task
from celery.exceptions import TimeLimitExceeded, WorkerLostError
from celery.worker.state import maybe_shutdown, task_ready
from django.core.exceptions import ImproperlyConfigured

from jobs import checks
from jobs.board import board
from jobs.companion import Companion
from jobs.syncpoints import reach

logger = logging.getLogger("jobs")

#: Seconds between two complaints while the database cannot be reached at the start of a worker.
PATIENCE = 10.0

_companion: Companion | None = None


def install(app: Any) -> None:
    """Let workers of this Celery app run our step; done when the first of our tasks is bound to the app."""
    app.steps["worker"].add(NodeStep)


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
        queues = sorted(parent.app.amqp.queues.consume_from)
        tasks = sorted(name for name in parent.app.tasks if not name.startswith("celery."))
        _companion = Companion(parent.app, board, queues, tasks)
        _companion.start()

    def start(self, parent: Any) -> None:
        assert _companion is not None
        complained = time.monotonic()
        while not _companion.wait_until_registered(0.5):
            # Raises if the worker was told to stop meanwhile.
            maybe_shutdown()
            if time.monotonic() - complained > PATIENCE:
                complained = time.monotonic()
                logger.error("the worker waits for its database to register itself", extra={"action": "node_waits"})
        parent.timer.call_repeatedly(PATIENCE, self._watch)

    def _watch(self) -> None:
        """Without its companion this worker would take messages and could claim nothing."""
        if _companion is not None and not _companion.is_alive():
            logger.critical("the companion is gone: this worker stops", extra={"action": "companion_gone"})
            os.kill(os.getpid(), signal.SIGTERM)


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
        _companion.tell(stopping=how)


@signals.task_revoked.connect(dispatch_uid="jobs.worker")
def _on_revoked(request: Any = None, terminated: bool = False, expired: bool = False, **kwargs: Any) -> None:
    if _companion is not None and request is not None and not terminated and getattr(request, "jobs", None):
        _companion.tell(revoked=str(request.id), expired=expired)


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
        return "jobs" in self.request_dict and not self.task.is_stock()

    def acknowledge(self) -> None:
        reach("before_ack")
        super().acknowledge()

    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> None:
        # A cold shutdown kills the pool's processes before it announces itself: not their own fault.
        if _companion is not None and self.is_job:
            _companion.tell(ended=str(self.id), why="cancelled")
        super().cancel(pool, signal=signal, emit_retry=emit_retry)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        if soft or not self.is_job:
            super().on_timeout(soft, timeout)
            return
        logger.error(
            "%s[%s] ran longer than its hard time limit of %s s",
            self.name,
            self.id,
            timeout,
            extra={"action": "timed_out", "job": self.id, "task": self.name},
        )
        if _companion is not None:
            _companion.tell(ended=str(self.id), why="timed_out", limit=timeout)
        task_ready(self)
        self.acknowledge()

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
            extra={"action": "process_lost", "job": self.id, "task": self.name},
        )
        task_ready(self)
        self.acknowledge()
