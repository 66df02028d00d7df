"""The part of the end of a stop in the core."""

from __future__ import annotations

from typing import Any

from jobs.doors import Extension


class Stopping(Extension):
    instead = {"jobs.worker.supervisor.Supervisor": "jobs.contrib.stopping.stopping.Ending"}

    def starting(self, worker: Any) -> None:
        from jobs.contrib.stopping.stopping import prepare

        prepare(worker)
