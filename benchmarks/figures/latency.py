"""How soon an idle worker begins a job."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.figures.figure import CALLERS, OURS, Column, Figure
from benchmarks.goals import Goal
from benchmarks.scene import Scene, quantile


class Latency(Figure):
    name = "latency"
    title = "Latency"
    about = (
        "From the end of COMMIT to the first line of an empty body, with two idle processes, one job after the "
        "other, 15 to 45 ms apart."
    )
    columns = (
        Column(key="p50_ms", title="p50 ms", digits=1, better="less", is_drawn=True),
        Column(key="p95_ms", title="p95 ms", digits=1),
        Column(key="p99_ms", title="p99 ms", digits=1, better="less", is_drawn=True),
        Column(key="most_ms", title="most ms", digits=1),
        Column(key="jobs", title="jobs"),
    )
    goals = (
        Goal(
            figure="latency",
            key="p50_ms",
            against=("celery-redis",),
            most=0.5,
            says="commit to start, p50, beside bare Celery on Redis",
        ),
        Goal(
            figure="latency",
            key="p99_ms",
            against=("celery-redis",),
            most=0.6,
            says="commit to start, p99, beside bare Celery on Redis",
        ),
        Goal(
            figure="latency",
            key="p50_ms",
            against=("procrastinate",),
            most=1.0,
            says="commit to start, p50, beside Procrastinate",
        ),
        Goal(
            figure="latency",
            key="p99_ms",
            against=("procrastinate",),
            most=1.0,
            says="commit to start, p99, beside Procrastinate",
        ),
    )
    peers = CALLERS
    more_peers = OURS
    quick_peers = ("jobs", "celery-redis", "procrastinate")
    parts = ({"number": 150, "seconds": 8, "finish": 2},)
    quick_parts = ({"number": 50, "seconds": 4, "finish": 1},)

    def measure(
        self, scene: Scene, number: int = 0, seconds: float = 0, finish: float = 0, **options: Any
    ) -> dict[str, float | None]:
        scene.empty()
        with scene.workers():
            scene.warm()
            time.sleep(finish)
            found = scene.latencies(number, seconds)
        return {
            "p50_ms": quantile(found, 0.5),
            "p95_ms": quantile(found, 0.95),
            "p99_ms": quantile(found, 0.99),
            "most_ms": max(found),
            "jobs": len(found),
        }
