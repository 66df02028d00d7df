"""What a call adds to its transaction."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.figures.figure import CALLERS, OURS, TRANSACTIONAL, Column, Figure
from benchmarks.goals import Goal
from benchmarks.scene import Scene, quantile

#: Transactions in a row with a call, and then without one.
BLOCK = 50

#: Seconds between two paced transactions. Calls within a shorter time would share a ring.
PACE = 0.03


class Enqueue(Figure):
    name = "enqueue"
    title = "Enqueue"
    about = (
        "`atomic(): User insert; enqueue(pk)` on a warm connection, no worker. Blocks with the call alternate "
        "with blocks without it, in one process; what is *added* is the difference of the medians. Back to back, "
        "and paced: one transaction each 30 ms, as requests come. Python's and PostgreSQL's CPU are what the "
        "call adds, too."
    )
    columns = (
        Column(key="bare_ms", title="without, p50 ms", digits=2),
        Column(key="p50_ms", title="with, p50 ms", digits=2),
        Column(key="p95_ms", title="with, p95 ms", digits=2),
        Column(key="added_ms", title="added p50 ms", digits=3, better="less", is_drawn=True),
        Column(key="python_us", title="Python CPU µs"),
        Column(key="postgres_us", title="PostgreSQL CPU µs"),
        Column(key="paced_added_ms", title="paced: added p50 ms", digits=3, better="less", is_drawn=True),
        Column(key="paced_python_us", title="paced: Python CPU µs"),
        Column(key="paced_postgres_us", title="paced: PostgreSQL CPU µs"),
    )
    goals = (
        Goal(
            figure="enqueue",
            key="added_ms",
            against=("celery-redis",),
            most=0.42,
            says="added p50 of a call, beside bare Celery on Redis",
        ),
        Goal(
            figure="enqueue",
            key="added_ms",
            against=TRANSACTIONAL,
            most=1.0,
            says="added p50 of a call, beside the best transactional peer",
        ),
        Goal(
            figure="enqueue",
            key="paced_added_ms",
            against=("celery-redis",),
            most=0.6,
            says="added p50 of a single call per request, beside bare Celery on Redis",
        ),
    )
    peers = CALLERS
    more_peers = OURS
    quick_peers = ("jobs", "celery-redis", *TRANSACTIONAL)
    parts = ({"number": 2_000, "paced": 60},)
    quick_parts = ({"number": 300, "paced": 20},)

    def measure(self, scene: Scene, number: int = 0, paced: int = 0, **options: Any) -> dict[str, float | None]:
        scene.empty()
        warm_up(scene)
        quick, slow = compare(scene, number), compare(scene, paced, block=10, pace=PACE)
        return {**quick, **{f"paced_{key}": value for key, value in slow.items()}}


def warm_up(scene: Scene, number: int = 20) -> None:
    for _ in range(number):
        unit(scene, _call(scene))
        unit(scene)


def compare(scene: Scene, number: int, block: int = BLOCK, pace: float = 0.0) -> dict[str, float | None]:
    """Transactions without a call and with one.

    Parameters:
        number: how many of each.
        block: how many in a row.
        pace: seconds from the start of one to that of the next; 0 is back to back.
    """
    bare, called, call = _Used(), _Used(), _call(scene)
    for _ in range(max(1, number // block)):
        for used in (bare, called):
            began, python, server = time.perf_counter(), time.process_time(), scene.server_cpu()
            for place in range(block):
                if pace:
                    time.sleep(max(0.0, began + place * pace - time.perf_counter()))
                used.seconds.append(unit(scene, call if used is called else None))
            if pace:
                time.sleep(pace)
            used.python.append((time.process_time() - python) / block)
            used.postgres.append((scene.server_cpu()["postgres"] - server["postgres"]) / block)
    return {
        "bare_ms": 1e3 * median(bare.seconds),
        "p50_ms": 1e3 * median(called.seconds),
        "p95_ms": 1e3 * quantile(called.seconds, 0.95),
        "added_ms": 1e3 * (median(called.seconds) - median(bare.seconds)),
        "python_us": 1e6 * (median(called.python) - median(bare.python)),
        "postgres_us": 1e6 * (median(called.postgres) - median(bare.postgres)),
    }


def _call(scene: Scene) -> Callable[[int], Any]:
    task = scene.task("noop")
    return lambda pk: scene.peer.enqueue(task, pk)


def unit(scene: Scene, call: Callable[[int], Any] | None = None) -> float:
    """The seconds of one transaction that makes a user, and calls a function with the key of the user."""
    from django.db import transaction

    from benchmarks.project.models import User

    began = time.perf_counter()
    with transaction.atomic():
        user = User.objects.create(email="user@example.com")
        if call is not None:
            call(user.pk)
    return time.perf_counter() - began


@dataclass
class _Used:
    """The seconds of each transaction, and the seconds of the processor for one transaction of each block."""

    seconds: list[float] = field(default_factory=list)
    python: list[float] = field(default_factory=list)
    postgres: list[float] = field(default_factory=list)
