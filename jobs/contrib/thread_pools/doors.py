"""The part of workers without processes in the core: a step of the worker."""

from __future__ import annotations

from typing import Any

from celery import signals

from jobs.doors import Extension


def _on_init(sender: Any = None, **kwargs: Any) -> None:
    from jobs.contrib.thread_pools.threads import ThreadStep
    from jobs.worker.bootsteps import NodeStep

    # The core has added its own if the worker has tasks of ours.
    if sender is not None and NodeStep in sender.app.steps["worker"]:
        sender.app.steps["worker"].add(ThreadStep)


class ThreadPools(Extension):
    def ready(self) -> None:
        signals.worker_init.connect(_on_init, dispatch_uid=__name__)
