"""The part of the operator's room in the core."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import Any

from jobs.doors import Attempt, Extension

#: Seconds from the start until the first count, and between two counts.
FIRST, INTERVAL = 1.0, 20.0


def count(stopping: Event, attempt: Attempt) -> None:
    from jobs.contrib.operator.statistics import Count
    from jobs.lifecycle.worker_state import worker_state

    counting, pause = Count(lambda: worker_state.node), FIRST
    while not stopping.wait(pause):
        attempt(counting.run_once)
        pause = INTERVAL


class Operator(Extension):
    def threads(self) -> list[Callable[[Event, Attempt], None]]:
        return [count]

    def selects(self) -> dict[str, Any]:
        from jobs.contrib.operator.selection import FIELDS

        return FIELDS
