"""The part of jobs of unknown tasks in the core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobs.doors import Extension


class UnknownTasks(Extension):
    @property
    def looks(self) -> Mapping[str, str]:  # type: ignore[override]
        from jobs.contrib.unknown_tasks.store import LOOKS

        return LOOKS

    def put_aside(self, job: Any) -> bool:
        from jobs.contrib.unknown_tasks.parking import put_aside

        return put_aside(job)

    def ticked(self, answers: Mapping[str, Mapping[str, Any]]) -> None:
        from jobs.contrib.unknown_tasks.parking import ticked

        ticked(answers)
