"""What an idle worker costs."""

from __future__ import annotations

import time
from typing import Any

from benchmarks import processes
from benchmarks.figures.figure import CALLERS, OURS, Column, Figure
from benchmarks.goals import Goal
from benchmarks.scene import Scene


class Idle(Figure):
    name = "idle"
    title = "Idle"
    about = (
        "One worker with two processes, which ran 200 *idem* and then nothing: percent of a core, its own and "
        "that of the servers, 10 s later; and the memory of its whole tree (PSS: what processes share counts "
        "once)."
    )
    columns = (
        Column(key="worker_percent", title="worker, % of a core", digits=2, better="less", is_drawn=True),
        Column(key="postgres_percent", title="PostgreSQL, %", digits=2),
        Column(key="broker_percent", title="broker, %", digits=2),
        Column(key="memory_mb", title="memory, MB", digits=1, better="less", is_drawn=True),
        Column(key="processes", title="processes"),
    )
    goals = (
        Goal(figure="idle", key="worker_percent", most=0.3, unit="%", says="an idle worker's CPU, percent of a core"),
        Goal(
            figure="idle",
            key="memory_mb",
            against=("celery-redis",),
            most=5.0,
            is_difference=True,
            unit="MB",
            says="memory above the same bare Celery worker, MB",
        ),
    )
    peers = ("jobs", "celery-redis", "procrastinate")
    more_peers = (*OURS, *CALLERS)
    quick_peers = ("jobs", "celery-redis")
    parts = ({"finish": 10, "seconds": 10},)
    quick_parts = ({"finish": 3, "seconds": 4},)
    rounds = 2

    def measure(self, scene: Scene, finish: float = 0, seconds: float = 0, **options: Any) -> dict[str, float | None]:
        scene.empty()
        scene.fill("idem", 200)
        with scene.workers() as pids:
            scene.wait(200, 15)
            time.sleep(finish)
            servers, worker, began = scene.server_cpu(), processes.cpu_seconds(pids), time.monotonic()
            time.sleep(seconds)
            worker = processes.cpu_seconds(pids) - worker
            used = {name: value - servers[name] for name, value in scene.server_cpu().items()}
            passed = time.monotonic() - began
            return {
                "worker_percent": 100 * worker / passed,
                "postgres_percent": 100 * used["postgres"] / passed,
                "broker_percent": 100 * used[scene.peer.broker] / passed if scene.peer.broker else None,
                "memory_mb": processes.memory(pids) / 1e6,
                "processes": sum(len(processes.family(pid)) for pid in pids),
            }
