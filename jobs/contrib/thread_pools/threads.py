"""Threads of our own that run jobs, beside a pool without processes."""

from __future__ import annotations

import threading
import time
from typing import Any

from celery import bootsteps
from celery.concurrency import prefork
from django.db import connections

from jobs import extensions
from jobs.conf.logs import logger
from jobs.lifecycle.wakeups import wakeup
from jobs.lifecycle.worker_state import IDLE, worker_state
from jobs.worker import executors
from jobs.worker.bootsteps import NodeStep
from jobs.worker.runner import Runner


class ThreadStep(bootsteps.StartStopStep):
    """Starts the threads once the worker is registered as a node."""

    requires = (NodeStep,)

    def include_if(self, parent: Any) -> bool:
        return not issubclass(parent.pool_cls, prefork.TaskPool)

    def create(self, parent: Any) -> None:
        count = 1 if parent.pool_cls.__module__.rpartition(".")[2] == "solo" else parent.concurrency
        about = parent.app, parent.hostname
        names = [f"jobs-{number}" for number in range(count)]
        self.threads = [threading.Thread(target=_run_jobs, args=about, name=name, daemon=True) for name in names]

    def start(self, parent: Any) -> None:
        for thread in self.threads:
            thread.start()
        for each in executors.present:
            each.start(parent.app, parent.hostname)

    def stop(self, parent: Any) -> None:
        """Wait for the bodies that run in threads."""
        for thread in self.threads:
            if thread.ident is not None:
                thread.join()
        for each in executors.present:
            each.wait()

    def terminate(self, parent: Any) -> None:
        """A cold stop does not wait for threads: their jobs are given back when the process has ended."""


def _run_jobs(app: Any, hostname: str) -> None:
    runner = extensions.instead(Runner)(app, hostname)
    try:
        woken = b""
        while worker_state.stopping_for is None:
            try:
                has_run = runner.run_batch(woken)
            except Exception:
                # A process would end and be replaced, but no code replaces a thread. The jobs it had are orphans now.
                runner.slot.rest(IDLE)
                logger.exception(
                    "a thread that runs jobs goes on after an error", extra=worker_state.about("runner_broken")
                )
                has_run = False
            woken, deadline = b"", time.monotonic() + (0.0 if has_run else runner.patience)
            while not woken and worker_state.stopping_for is None and (left := deadline - time.monotonic()) > 0:
                woken = wakeup.wait(min(0.5, left))
    finally:
        runner.slot.free()
        connections.close_all()
