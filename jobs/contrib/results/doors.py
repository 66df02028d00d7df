"""The part of the results in the core."""

from __future__ import annotations

from typing import Any

from jobs.doors import Extension


class Results(Extension):
    instead = {
        "jobs.execution.tracer.NoBackend": "jobs.contrib.results.backend.Backend",
        "jobs.worker.supervisor.keep": "jobs.contrib.results.store.write_said",
    }

    def ready(self) -> None:
        from jobs.models import above

        above["wait"] = _wait

    def prune(self, using: str, budget: float) -> None:
        from jobs.contrib.results import store
        from jobs.store import databases

        if using == databases.home():
            with databases.side(is_apart=False) as side:
                store.prune(side)


def _wait(*given: Any) -> Any:
    from jobs.contrib.results.backend import wait

    return wait(*given)
