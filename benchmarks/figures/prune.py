"""Whether one worker deletes as fast as jobs end."""

from __future__ import annotations

import time
from typing import Any

from benchmarks import completions
from benchmarks.figures.figure import Column, Figure
from benchmarks.figures.size import copy_finished
from benchmarks.goals import Goal
from benchmarks.scene import Scene

#: Seconds between two bundles of calls.
TICK = 0.1


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
        # Two of the worker's rounds may pass by: it has only just begun when the first is due.
        copy_finished(scene, rows, ago="60 days")
        scene.execute("VACUUM ANALYZE jobs_job")
        scene.finish()
        task, called, left, deleting, known = scene.task("noop"), 0, rows, 0.0, 0
        with scene.workers():
            began, deadline = time.monotonic(), time.monotonic() + 240
            while left and time.monotonic() < deadline:
                if called < (time.monotonic() - began) * rate:
                    with transaction.atomic():
                        task.delay_many([(each,) for each in range(int(rate * TICK))])
                    called += int(rate * TICK)
                if not deleting or time.monotonic() - deleting > 1:
                    left = self._left(scene)
                if left < rows and not deleting:
                    deleting, first, known = time.monotonic(), left, completions.count()
                time.sleep(0.01)
            lasted = time.monotonic() - deleting
            ran = completions.count() - known
        if left:
            raise RuntimeError(f"{left} of {rows} rows were left after 240 s")
        return {"rows_per_s": first / lasted, "jobs_per_s": ran / lasted, "waiting": called - completions.count()}

    def _left(self, scene: Scene) -> int:
        [[found]] = scene.execute("SELECT count(*) FROM jobs_job WHERE finished_at < now() - interval '30 days'")
        return int(found)
