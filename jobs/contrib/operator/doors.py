"""The part of the operator's room in the core."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from threading import Event
from typing import Any

from jobs.doors import Attempt, Extension

#: Seconds from the start until the first count, and between two counts.
FIRST, INTERVAL = 1.0, 20.0

#: Seconds between two looks at what people told this worker.
LISTEN = 1.0


def count(stopping: Event, attempt: Attempt) -> None:
    from jobs.contrib.operator.statistics import Count
    from jobs.lifecycle.worker_state import worker_state

    counting, pause = Count(lambda: worker_state.node), FIRST
    while not stopping.wait(pause):
        attempt(counting.run_once)
        pause = INTERVAL


def obey(stopping: Event, attempt: Attempt) -> None:
    from jobs.contrib.operator import orders
    from jobs.store.databases import SideDatabase

    side = SideDatabase(is_apart=False)
    while not stopping.wait(LISTEN):
        attempt(lambda: orders.obey(side))


class Operator(Extension):
    def threads(self) -> list[Callable[[Event, Attempt], None]]:
        return [count, obey]

    def prune(self, using: str, budget: float) -> None:
        from jobs.contrib.operator import store
        from jobs.store.databases import SideDatabase, home

        if using == home():
            with closing(SideDatabase(is_apart=False)) as side:
                store.prune(side)

    def selects(self) -> dict[str, Any]:
        from jobs.contrib.operator.selection import FIELDS

        return FIELDS
