"""The part of the results in the core."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from typing import Any

from jobs.contrib.results.said import answers_until
from jobs.doors import Extension


class Results(Extension):
    instead = {
        "jobs.execution.tracer.NoBackend": "jobs.contrib.results.backend.Backend",
        "jobs.worker.supervisor.Supervisor": "jobs.contrib.results.keeping.Keeping",
    }

    def ready(self) -> None:
        from jobs.models import above

        above["wait"] = _wait

    def heard(self, told: Collection[str] | None) -> None:
        from jobs.contrib.results.listener import heard

        heard(told)

    def happened(self, jobs: Iterable[Any], using: str, action: str) -> None:
        if answers_until[0] > time.monotonic() and action in ("succeeded", "failed", "cancelled"):
            from jobs.contrib.results.listener import answer

            answer(jobs, using)

    def prune(self, using: str, budget: float) -> None:
        from jobs.contrib.results import store
        from jobs.store import databases

        if using == databases.home():
            with databases.side(is_apart=False) as side:
                store.prune(side)


def _wait(*given: Any) -> Any:
    from jobs.contrib.results.backend import wait

    return wait(*given)
