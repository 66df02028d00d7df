"""The part of workers without processes in the core: a step of the worker."""

from __future__ import annotations

from typing import Any

from jobs.doors import Extension


class ThreadPools(Extension):
    def attaching(self, worker: Any) -> None:
        from jobs.contrib.thread_pools.threads import ThreadStep

        worker.app.steps["worker"].add(ThreadStep)
