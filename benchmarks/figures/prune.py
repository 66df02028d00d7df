"""Whether one worker deletes as fast as jobs end."""

from __future__ import annotations

import time
from typing import Any

from benchmarks import completions
from benchmarks.figures.figure import Column, Figure
from benchmarks.figures.size import copy_finished
from benchmarks.goals import Goal
from benchmarks.scene import Scene

#: Seconds between two bundles of calls, and between two looks.
TICK, LOOK = 0.1, 0.5


class Prune(Figure):
    name = "prune"
    title = "Pruning"
    about = (
        "A table of 400,000 jobs that ended weeks ago, and one worker of two processes, which runs 1,000 empty jobs a "
        "second, called 100 at a time: rows deleted a second, from the first deletion to the last."
    )
    columns = (
        Column(key="rows_per_s", title="rows deleted/s", better="more"),
        Column(key="jobs_per_s", title="jobs/s meanwhile"),
        Column(key="waiting", title="jobs that waited at the end"),
    )
    goals = (Goal(figure="prune", key="rows_per_s", least=20_000, unit="rows/s", says="pruned beside 1,000 jobs/s"),)
    peers = ("jobs",)
    parts = ({"rows": 400_000, "rate": 1_000},)
    quick_parts = ({"rows": 40_000, "rate": 500},)
    rounds = 1
    timeout = 300.0

    def measure(self, scene: Scene, rows: int = 0, rate: int = 0, **options: Any) -> dict[str, float | None]:
        from django.db import transaction

        scene.empty()
        copy_finished(scene, rows, ago="60 days")
        completions.path().unlink()
        scene.execute("VACUUM ANALYZE jobs_job")
        scene.finish()
        task, called, gone, deadline = scene.task("noop"), 0, self._deleted(scene), time.monotonic() + 240
        looks: list[tuple[float, int, int]] = []
        with scene.workers():
            began = time.monotonic()
            while not looks or looks[-1][1] < rows:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{looks[-1][1]} of {rows} rows were deleted within 240 s")
                if called < (time.monotonic() - began) * rate:
                    with transaction.atomic():
                        task.delay_many([(each,) for each in range(int(rate * TICK))])
                    called += int(rate * TICK)
                if not looks or time.monotonic() - looks[-1][0] > LOOK:
                    deleted = self._deleted(scene) - gone
                    looks.append((time.monotonic(), deleted, completions.count()))
                time.sleep(0.01)
            waiting = called - completions.count()
        # From the last look before the first deletion on.
        first = [each for each in looks if not each[1]][-1]
        lasted = looks[-1][0] - first[0]
        return {
            "rows_per_s": looks[-1][1] / lasted,
            "jobs_per_s": (looks[-1][2] - first[2]) / lasted,
            "waiting": waiting,
        }

    def _deleted(self, scene: Scene) -> int:
        """How many rows were deleted so far, as the server counts them: at no cost, and some of them a second late."""
        [[found]] = scene.execute("SELECT n_tup_del FROM pg_stat_user_tables WHERE relname = 'jobs_job'")
        return int(found)
