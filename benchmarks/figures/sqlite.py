"""What two processes do on SQLite, and how long other writers wait beside them."""

from __future__ import annotations

import time
from typing import Any

from benchmarks import completions
from benchmarks.figures.figure import Column, Figure
from benchmarks.goals import Goal
from benchmarks.scene import Scene, quantile


class Sqlite(Figure):
    name = "sqlite"
    title = "SQLite"
    about = (
        "Two processes on SQLite (WAL, IMMEDIATE, synchronous=FULL): the rate of *idem*; the latency from COMMIT "
        "to the body with an idle worker; and a caller's own INSERT, one each 10 ms, while the two drain. Huey's "
        "queue is a file of its own, so that its callers never wait for it, and never share a transaction with "
        "it."
    )
    columns = (
        Column(key="idem_per_s", title="idem, jobs/s", better="more", is_drawn=True),
        Column(key="p50_ms", title="commit to start, p50 ms", digits=1, better="less", is_drawn=True),
        Column(key="p99_ms", title="p99 ms", digits=1),
        Column(key="write_p50_ms", title="a caller's write, p50 ms", digits=1),
        Column(key="write_p99_ms", title="a caller's write, p99 ms", digits=1, better="less", is_drawn=True),
        Column(key="writes", title="writes"),
    )
    goals = (
        Goal(
            figure="sqlite",
            key="idem_per_s",
            peer="jobs-sqlite",
            against=("huey-sqlite",),
            least=1.0,
            says="SQLite: idem, beside Huey",
        ),
        Goal(
            figure="sqlite",
            key="p50_ms",
            peer="jobs-sqlite",
            against=("huey-sqlite",),
            most=1.0,
            says="SQLite: commit to start, p50, beside Huey",
        ),
        Goal(
            figure="sqlite",
            key="write_p99_ms",
            peer="jobs-sqlite",
            most=50.0,
            unit="ms",
            says="SQLite: p99 of a caller's write beside two draining processes",
        ),
    )
    peers = quick_peers = ("jobs-sqlite", "huey-sqlite")
    parts = ({"number": 3_000, "seconds": 5, "calls": 60},)
    quick_parts = ({"number": 400, "seconds": 2, "calls": 15},)
    timeout = 120.0

    def measure(
        self, scene: Scene, number: int = 0, seconds: float = 0, calls: int = 0, **options: Any
    ) -> dict[str, float | None]:
        scene.empty()
        scene.fill("idem", number)
        with scene.workers():
            scene.wait(number, seconds)
            idem = completions.rate(completions.read())
        scene.empty()
        with scene.workers():
            scene.warm()
            time.sleep(1)
            started = scene.latencies(calls, seconds, gap=0.1)
        scene.empty()
        scene.fill("idem", number)
        with scene.workers():
            scene.wait(1, 1)
            writes = self._writes(number, seconds)
        return {
            "idem_per_s": idem,
            "p50_ms": quantile(started, 0.5),
            "p99_ms": quantile(started, 0.99),
            "write_p50_ms": quantile(writes, 0.5),
            "write_p99_ms": quantile(writes, 0.99),
            "writes": len(writes),
        }

    def _writes(self, number: int, seconds: float) -> list[float]:
        """The milliseconds of each write, until the others are done."""
        from benchmarks.project.models import User

        found: list[float] = []
        deadline = time.monotonic() + seconds
        while not found or (completions.count() < number and time.monotonic() < deadline):
            began = time.perf_counter()
            User.objects.create(email="user@example.com")
            found.append(1e3 * (time.perf_counter() - began))
            time.sleep(0.01)
        return found
