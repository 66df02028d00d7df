"""What many workers cost: claims for a job that comes alone, and connections."""

from __future__ import annotations

import time
from typing import Any

from benchmarks import completions
from benchmarks.figures.figure import Column, Figure
from benchmarks.goals import Goal
from benchmarks.scene import Scene
from tests.helpers.looks import Looks

#: They have 64 processes.
WORKERS, PROCESSES = 8, 8

#: Seconds between two calls: those have looked by then that were not the first.
GAP = 0.3


class Fleet(Figure):
    name = "fleet"
    title = "Eight workers"
    about = (
        f"{WORKERS} workers of {PROCESSES} processes on one queue. 40 empty jobs, each called when the one before has "
        "ended: how many claims all processes made for one of them. And the connections of all workers, while they are "
        "busy and afterwards, for one of them."
    )
    columns = (
        Column(key="claims_per_job", title="claims for a single job", digits=1, better="less"),
        Column(key="connections", title="connections of a worker", digits=1, better="less"),
    )
    goals = (
        Goal(figure="fleet", key="claims_per_job", most=3.0, unit="claims", says="claims for a single job"),
        Goal(figure="fleet", key="connections", most=11.0, unit="connections", says="connections of a worker of 8"),
    )
    peers = ("jobs",)
    parts = ({"number": 40, "drained": 4_000, "seconds": 60},)
    quick_parts = ({"number": 10, "drained": 1_000, "seconds": 60},)
    rounds = 1
    timeout = 200.0

    def measure(
        self, scene: Scene, number: int = 0, drained: int = 0, seconds: float = 0, **options: Any
    ) -> dict[str, float | None]:
        scene.empty()
        looks = Looks(completions.path().with_name("looks"))
        looks.path.unlink(missing_ok=True)
        before = _connections(scene)
        [command] = scene.peer.workers(PROCESSES)
        commands = [[*command, "-n", f"worker{each}@%h"] for each in range(WORKERS)]
        with scene.running(commands, **looks.env):
            _wait_for_workers(scene, seconds)
            scene.fill("noop", drained)
            most = 0
            while completions.count() < drained:
                most = max(most, _connections(scene) - before)
                time.sleep(0.05)
            time.sleep(2)
            claims = looks.count()
            for each in range(number):
                known = completions.count()
                scene.enqueue("noop", each)
                if not scene.wait(known + 1, 5):
                    raise RuntimeError("a job did not run within 5 s")
                time.sleep(GAP)
            claims = looks.count() - claims
            most = max(most, _connections(scene) - before)
        return {"claims_per_job": claims / number, "connections": most / WORKERS}


def _wait_for_workers(scene: Scene, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while scene.execute("SELECT count(*) FROM jobs_node WHERE dead_at IS NULL") != [(WORKERS,)]:
        if time.monotonic() > deadline:
            raise RuntimeError(f"not all workers began within {seconds} s")
        time.sleep(0.2)
    # Until they know each other, and their processes wait.
    time.sleep(5)


def _connections(scene: Scene) -> int:
    [[found]] = scene.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
    )
    return int(found)
