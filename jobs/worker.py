"""What ``celery worker`` gets from us: a node with its companion, and kept connections."""

from __future__ import annotations

import logging
import os
import signal
import time
from typing import Any

from celery import bootsteps, signals
from celery._state import get_current_task
from celery.exceptions import WorkerShutdown
from celery.platforms import EX_FAILURE
from celery.worker.state import maybe_shutdown
from django.core.exceptions import ImproperlyConfigured

from jobs import checks, companion, databases, pool, request
from jobs.alarm import alarm
from jobs.board import board
from jobs.consumer import ConsumerStep
from jobs.instance import NotAdopted

logger = logging.getLogger("jobs")

#: Seconds between two complaints while the database cannot be reached at the start of a worker.
PATIENCE = 10.0


def install(app: Any) -> None:
    """Let workers of this Celery app run our steps; done when the first of our tasks is bound to the app."""
    app.steps["worker"].add(NodeStep)
    app.steps["consumer"].add(ConsumerStep)


class NodeStep(bootsteps.StartStopStep):
    """Registers this worker as a node, before it consumes."""

    def create(self, parent: Any) -> None:
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
        pool.install()
        queues = sorted(parent.app.amqp.queues.consume_from)
        tasks = sorted(name for name in parent.app.tasks if not name.startswith("celery."))
        kind = parent.pool_cls.__module__.rpartition(".")[2]
        self.companion = companion.start(parent.app, queues, tasks, kind, parent.concurrency)

    def start(self, parent: Any) -> None:
        try:
            self._wait_until_registered()
        except NotAdopted as exc:
            logger.critical("this worker does not start: %s", exc, extra={"action": "not_adopted"})
            raise WorkerShutdown(EX_FAILURE) from None
        parent.timer.call_repeatedly(PATIENCE, self._watch)
        if holding := request.holding_time(parent.app):
            parent.timer.call_repeatedly(min(PATIENCE, holding / 8), request.acknowledge_long_ones, (holding / 2,))

    def close(self, parent: Any) -> None:
        """However the worker was told to stop: by a signal, by remote control, by an error."""
        companion.tell(stopping=True)
        alarm.stop_steps()

    def _wait_until_registered(self) -> None:
        complained = time.monotonic()
        while not self.companion.wait_until_registered(0.5):
            # Raises if the worker was told to stop meanwhile.
            maybe_shutdown()
            if time.monotonic() - complained > PATIENCE:
                complained = time.monotonic()
                logger.error("the worker waits for its database to register itself", extra=board.about("node_waits"))

    def _watch(self) -> None:
        """Without its companion this worker would take messages and could claim nothing."""
        if not self.companion.is_alive():
            reason = self.companion.last_words() or "it died"
            logger.critical("the companion is gone, this worker stops: %s", reason, extra=board.about("companion_gone"))
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


@signals.worker_shutdown.connect(dispatch_uid="jobs.worker")
def _on_shutdown(**kwargs: Any) -> None:
    alarm.stop()


@signals.worker_shutting_down.connect(dispatch_uid="jobs.worker")
def _on_shutting_down(how: str = "", **kwargs: Any) -> None:
    companion.tell(stopping=True)
    alarm.start()
