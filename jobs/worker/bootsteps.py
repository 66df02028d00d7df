"""What ``celery worker`` gets from us: a node with its supervisor, processes that claim, and kept connections."""

import gc
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from billiard.util import get_pdeathsig
from celery import bootsteps, signals
from celery.concurrency import get_implementation, prefork
from celery.exceptions import WorkerShutdown
from celery.platforms import EX_FAILURE
from celery.worker import control
from celery.worker.state import maybe_shutdown
from django.db import connections

from jobs import extensions
from jobs.conf import conf, is_ours
from jobs.conf.logs import logger
from jobs.lifecycle.claims import Claimer
from jobs.lifecycle.worker_state import worker_state
from jobs.store.identity import Identity, NotAdopted
from jobs.worker import executors, pool, runner
from jobs.worker.broker import ConsumerStep, repeat
from jobs.worker.supervisor import Supervisor
from jobs.worker.watchdog import supervisor

#: Seconds between two complaints while the database cannot be reached at the start of a worker, and between two looks
#: at the supervisor.
PATIENCE = 10.0


class NodeStep(bootsteps.StartStopStep):
    """Registers this worker as a node, before its pool starts."""

    def create(self, parent: Any) -> None:
        parent.jobs_repeated = [(PATIENCE, self._watch)]
        for starting in extensions.through("starting"):
            starting(parent)
        _keep_connections(parent.app)
        for name, command in extensions.merged("controls").items():
            if not isinstance(stock := control.Panel.data[name], partial):
                control.Panel.data[name] = partial(command, stock)
        # Only tasks that its processes run as jobs: a plain task would let parked jobs of its name go again and again.
        tasks = sorted(name for name, task in parent.app.tasks.items() if is_ours(task))
        is_prefork = issubclass(parent.pool_cls, prefork.TaskPool)
        kind = "prefork" if is_prefork else parent.pool_cls.__module__.rpartition(".")[2]
        # Import what each process would import for itself, also what sets its parent-death signal (cffi). Some of it
        # makes memory that all processes share, which has to be there before the first fork.
        for own in (runner.Runner, Claimer, Identity, Supervisor):
            extensions.instead(own)
        extensions.through("around")
        for alias in conf().DATABASES:
            connections[alias].ops.compiler("SQLCompiler")
        with suppress(OSError):
            get_pdeathsig()
        # The memory that the processes share stays shared: their garbage collections do not write into it.
        gc.collect()
        gc.freeze()
        makers = extensions.through("executor")
        executors.present[:] = [made for make in makers if (made := make(parent.app)) is not None]
        queues = list(parent.app.amqp.queues.consume_from)
        about = {"hostname": parent.hostname, "pool": kind, "concurrency": parent.concurrency}
        supervisor.start(queues, tasks=tasks, **about)

    def start(self, parent: Any) -> None:
        complained = time.monotonic()
        try:
            while not supervisor.wait_until_registered(0.5):
                # Raises if the worker was told to stop meanwhile.
                maybe_shutdown()
                if self._is_alone():
                    supervisor.status = EX_FAILURE
                    raise WorkerShutdown(EX_FAILURE)
                if time.monotonic() - complained > PATIENCE:
                    complained = time.monotonic()
                    text = "the worker waits for its database to register itself"
                    logger.error(text, extra=worker_state.about("node_waits"))
        except NotAdopted as exc:
            logger.critical("this worker does not start: %s", exc, extra={"action": "not_adopted"})
            raise WorkerShutdown(EX_FAILURE) from None
        repeat(parent)

    def close(self, parent: Any) -> None:
        """Called however the worker was told to stop: by a signal, by remote control, by an error."""
        worker_state.note_stop()

    def _watch(self) -> None:
        """Stop this worker if its supervisor is gone: no process of it would rescue the jobs."""
        if self._is_alone():
            os.kill(os.getpid(), signal.SIGTERM)

    def _is_alone(self) -> bool:
        if supervisor.is_alive():
            return False
        reason = supervisor.last_words() or "it died"
        logger.critical(
            "the supervisor is gone, this worker stops: %s", reason, extra=worker_state.about("supervisor_gone")
        )
        return True


def _keep_connections(app: Any) -> None:
    """Keep Celery's Django fixup from closing the connections around each of our tasks.

    It does so because a time limit in mid-query leaves a connection that Django takes for usable;
    ``databases.tidy`` handles exactly that after each run. Other tasks keep the fixup's behaviour.
    """
    for fixup in getattr(app, "_fixups", ()):
        worker_fixup: Any = getattr(fixup, "worker_fixup", None)
        for sent, name in ((signals.task_prerun, "on_task_prerun"), (signals.task_postrun, "on_task_postrun")):
            handle = getattr(worker_fixup, name, None)
            if handle is not None and sent.disconnect(handle):
                sent.connect(_for_stock(handle), weak=False)


def _for_stock(handle: Callable[..., None]) -> Callable[..., None]:
    def handle_stock(sender: Any, **kwargs: Any) -> None:
        if not is_ours(sender):
            handle(sender=sender, **kwargs)

    return handle_stock


@signals.worker_init.connect(dispatch_uid="jobs.worker.bootsteps")
def _on_init(sender: Any = None, **kwargs: Any) -> None:
    if sender is None or not any(getattr(task, "is_transactional", False) for task in sender.app.tasks.values()):
        return
    sender.app.steps["worker"].add(NodeStep)
    sender.app.steps["consumer"].add(ConsumerStep)
    if get_implementation(sender.pool_cls) is prefork.TaskPool:
        # ``-P prefork`` stays what people type.
        sender.pool_cls = pool.TaskPool
    # Tasks carry the limits of the settings themselves. The limits of the command line are for tasks that have none.
    conf = sender.app.conf
    runner.default_limits = (
        sender.time_limit if sender.time_limit != conf.task_time_limit else None,
        sender.soft_time_limit if sender.soft_time_limit != conf.task_soft_time_limit else None,
    )
    # The pool must not add the default soft limit to those either: it arms the soft limit first, and a lower hard limit
    # never strikes.
    if sender.soft_time_limit == conf.task_soft_time_limit:
        sender.soft_time_limit = None
    for attaching in extensions.through("attaching"):
        attaching(sender)


@signals.worker_shutting_down.connect(dispatch_uid="jobs.worker.bootsteps")
def _on_shutting_down(**kwargs: Any) -> None:
    # At once: Celery's consumer stops later, and no process may begin another job.
    worker_state.note_stop()
