"""What ``celery worker`` gets from us: a node with its companion, processes that claim, and kept connections."""

from __future__ import annotations

import gc
import logging
import os
import signal
import time
from typing import Any

from celery import bootsteps, signals
from celery._state import get_current_task
from celery.concurrency import get_implementation, prefork
from celery.exceptions import WorkerShutdown
from celery.platforms import EX_FAILURE
from celery.worker import autoscale
from celery.worker.state import maybe_shutdown
from django.core.exceptions import ImproperlyConfigured

from jobs import checks, companion, control, databases, pool, runner, turns
from jobs.alarm import alarm
from jobs.board import IDLE, board
from jobs.consumer import ConsumerStep
from jobs.instance import NotAdopted

logger = logging.getLogger("jobs")

#: Seconds between two complaints while the database cannot be reached at the start of a worker.
PATIENCE = 10.0

#: Seconds between two looks of the autoscaler at the processes.
SCALE = 1.0

#: Celery's own setting of ``worker_autoscaler``.
STOCK_AUTOSCALER = "celery.worker.autoscale:Autoscaler"


def install(app: Any) -> None:
    """Let workers of this Celery app run our steps; done when the first of our tasks is bound to the app."""
    app.steps["worker"].add(NodeStep)
    app.steps["consumer"].add(ConsumerStep)


class NodeStep(bootsteps.StartStopStep):
    """Registers this worker as a node, before its pool starts."""

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
        control.install()
        turns.install()
        queues = sorted(parent.app.amqp.queues.consume_from)
        tasks = sorted(name for name in parent.app.tasks if not name.startswith("celery."))
        is_prefork = issubclass(parent.pool_cls, prefork.TaskPool)
        kind = "prefork" if is_prefork else parent.pool_cls.__module__.rpartition(".")[2]
        # What all processes share stays shared: no collection of theirs writes into it.
        gc.collect()
        gc.freeze()
        self.companion = companion.start(parent.app, queues, tasks, kind, parent.concurrency)
        self.threads = None
        if not is_prefork:
            count = 1 if kind == "solo" else parent.concurrency
            self.threads = pool.Threads(parent.app, parent.hostname, count)

    def start(self, parent: Any) -> None:
        try:
            self._wait_until_registered()
        except NotAdopted as exc:
            logger.critical("this worker does not start: %s", exc, extra={"action": "not_adopted"})
            raise WorkerShutdown(EX_FAILURE) from None
        parent.timer.call_repeatedly(PATIENCE, self._watch)
        if getattr(parent, "autoscaler", None) is not None and parent.use_eventloop:
            # Celery looks when a message comes. Jobs come without.
            parent.timer.call_repeatedly(SCALE, parent.autoscaler.maybe_scale)
        if self.threads is not None:
            self.threads.start()

    def close(self, parent: Any) -> None:
        """However the worker was told to stop: by a signal, by remote control, by an error."""
        board.note_stop()
        companion.tell(stopping=True)
        alarm.stop_steps()

    def stop(self, parent: Any) -> None:
        if self.threads is not None:
            self.threads.join()

    def terminate(self, parent: Any) -> None:
        """A cold stop does not wait for threads: their jobs are given back when the process has ended."""

    def _wait_until_registered(self) -> None:
        complained = time.monotonic()
        while not self.companion.wait_until_registered(0.5):
            # Raises if the worker was told to stop meanwhile.
            maybe_shutdown()
            if time.monotonic() - complained > PATIENCE:
                complained = time.monotonic()
                logger.error("the worker waits for its database to register itself", extra=board.about("node_waits"))

    def _watch(self) -> None:
        """Without its companion this worker would run jobs that nobody rescues."""
        if not self.companion.is_alive():
            reason = self.companion.last_words() or "it died"
            logger.critical("the companion is gone, this worker stops: %s", reason, extra=board.about("companion_gone"))
            os.kill(os.getpid(), signal.SIGTERM)


class Autoscaler(autoscale.Autoscaler):
    """Celery's, which counts the processes that run jobs beside the requests of stock tasks."""

    @property
    def qty(self) -> int:
        busy = sum(slot.phase != IDLE for slot in board.occupied())
        # All are busy: perhaps more work waits, and one more process will tell.
        return super().qty + busy + (busy >= self.processes)


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
    if sender is None or NodeStep not in sender.app.steps["worker"]:
        return
    if get_implementation(sender.pool_cls) is prefork.TaskPool:
        # ``-P prefork`` stays what people type.
        sender.pool_cls = pool.TaskPool
        pool.install(sender)
    if sender.autoscaler_cls == STOCK_AUTOSCALER:
        sender.autoscaler_cls = "jobs.worker:Autoscaler"
    # Tasks carry the limits of the settings themselves. What the command line says is for those that have none.
    conf = sender.app.conf
    runner.default_limits = (
        sender.time_limit if sender.time_limit != conf.task_time_limit else None,
        sender.soft_time_limit if sender.soft_time_limit != conf.task_soft_time_limit else None,
    )
    # Tasks carry the default soft limit themselves; the pool must not add it to those that have none. A pool that
    # knows a soft limit arms that one first, and a hard limit below it never strikes.
    if sender.soft_time_limit == sender.app.conf.task_soft_time_limit:
        sender.soft_time_limit = None


@signals.worker_shutdown.connect(dispatch_uid="jobs.worker")
def _on_shutdown(**kwargs: Any) -> None:
    alarm.stop()


@signals.worker_shutting_down.connect(dispatch_uid="jobs.worker")
def _on_shutting_down(how: str = "", **kwargs: Any) -> None:
    # At once: Celery's consumer stops later, and no process may begin another job.
    board.note_stop()
    companion.tell(stopping=True)
    alarm.start()
