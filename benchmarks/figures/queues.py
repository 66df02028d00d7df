"""What queues cost that are empty."""

from __future__ import annotations

from typing import Any

from benchmarks import completions
from benchmarks.figures.figure import Column, Figure
from benchmarks.goals import Goal
from benchmarks.scene import Scene

QUEUES = 200


class Queues(Figure):
    name = "queues"
    title = "Two hundred queues"
    about = (
        f"4,000 empty jobs in one queue, two processes that take from it alone, and two that take from {QUEUES}, of "
        "which all others are empty. The median of three runs of each, in turn."
    )
    columns = (
        Column(key="one_per_s", title="one queue, jobs/s", better="more"),
        Column(key="many_per_s", title=f"{QUEUES} queues, jobs/s", better="more"),
        Column(key="kept", title="200 to one", digits=2, better="more"),
    )
    goals = (Goal(figure="queues", key="kept", least=0.9, says="200 queues, one of them busy, beside one queue"),)
    peers = ("jobs",)
    parts = ({"number": 4_000, "seconds": 30, "times": 3},)
    quick_parts = ({"number": 1_000, "seconds": 20, "times": 1},)
    rounds = 1
    timeout = 300.0

    def measure(
        self, scene: Scene, number: int = 0, seconds: float = 0, times: int = 0, **options: Any
    ) -> dict[str, float | None]:
        from statistics import median

        from django.db import transaction

        [command] = scene.peer.workers(2)
        rates: dict[int, list[float]] = {1: [], QUEUES: []}
        for _ in range(times):
            for queues, found in rates.items():
                scene.empty()
                with transaction.atomic():
                    scene.task("noop").delay_many([(each,) for each in range(number)], queue="queue-077")
                scene.execute("VACUUM ANALYZE jobs_job")
                names = ["queue-077"] if queues == 1 else [f"queue-{each:03}" for each in range(queues)]
                with scene.running([[*command, "-Q", ",".join(names)]]):
                    if not scene.wait(number, seconds):
                        raise RuntimeError(f"{completions.count()} of {number} jobs ran within {seconds} s")
                found.append(completions.rate(completions.read()) or 0.0)
        one, many = median(rates[1]), median(rates[QUEUES])
        return {"one_per_s": one, "many_per_s": many, "kept": many / one}
