"""The part of the operator's room in the core."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from threading import Event
from typing import Any

from jobs.doors import Attempt, Extension

#: Seconds from the start until the first count, and between two counts.
FIRST, INTERVAL = 1.0, 20.0

#: Seconds between two looks for orders to this worker.
LISTEN = 1.0

#: Seconds after the clock's last look until the thread looks by itself: the clock is busy, or looks seldom.
LATE = 1.5

#: Set when the clock saw an order to some worker, or when the supervisor ends.
_told = Event()


class _Asked:
    #: When the clock looked last, on the monotonic clock.
    at = 0.0


def count(stopping: Event, attempt: Attempt) -> None:
    from jobs.contrib.operator.statistics import Count
    from jobs.lifecycle.worker_state import worker_state

    counting, pause = Count(lambda: worker_state.node), FIRST
    while not stopping.wait(pause):
        attempt(counting.run_once)
        pause = INTERVAL


def obey(stopping: Event, attempt: Attempt) -> None:
    from jobs.contrib.operator import orders
    from jobs.store import of
    from jobs.store.databases import SideDatabase, home

    side = SideDatabase(is_apart=False)
    # SQLite has the orders in a separate file, which the clock does not read.
    looks_itself = of(home()).has_one_writer
    while not stopping.is_set():
        is_told = (stopping if looks_itself else _told).wait(LISTEN)
        _told.clear()
        if not stopping.is_set() and (is_told or looks_itself or time.monotonic() - _Asked.at > LATE):
            attempt(lambda: orders.obey(side))


class Operator(Extension):
    looks = {"orders": "jobs_order"}

    def ticked(self, answers: Mapping[str, Mapping[str, Any]]) -> None:
        from jobs.store.databases import home

        if (is_told := answers.get(home(), {}).get("orders")) is not None:
            _Asked.at = time.monotonic()
        if is_told:
            _told.set()

    def heard(self, told: Collection[str] | None) -> None:
        if told is None:
            _told.set()

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
