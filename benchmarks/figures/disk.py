"""How much disk space a finished job takes."""

from __future__ import annotations

from typing import Any

from benchmarks.figures.figure import Column, Figure
from benchmarks.goals import Goal
from benchmarks.scene import Scene


class Disk(Figure):
    name = "disk"
    title = "On disk"
    about = (
        "The table of jobs with all its indexes, after 20,000 empty jobs were run and it was vacuumed (a plain "
        "VACUUM), divided by its rows. In a quick run they are fewer, and pages that are not full weigh more."
    )
    columns = (
        Column(key="rows", title="jobs"),
        Column(key="bytes", title="bytes a job", better="less", is_drawn=True),
        Column(key="table_bytes", title="table"),
        Column(key="index_bytes", title="indexes"),
    )
    goals = (Goal(figure="disk", key="bytes", most=700.0, unit="bytes", says="bytes of a finished job"),)
    peers = quick_peers = ("jobs",)
    parts = ({"number": 20_000, "seconds": 100},)
    quick_parts = ({"number": 2_000, "seconds": 8},)
    rounds = 1
    timeout = 180.0

    def measure(self, scene: Scene, number: int = 0, seconds: float = 0, **options: Any) -> dict[str, float | None]:
        scene.empty()
        scene.fill("noop", number)
        with scene.workers():
            # If a worker is too slow, some jobs still wait. They are rows as well.
            scene.wait(number, seconds)
        scene.execute("VACUUM jobs_job")
        [(rows, table, indexes)] = scene.execute(
            "SELECT count(*), pg_total_relation_size('jobs_job') - pg_indexes_size('jobs_job'), "
            "pg_indexes_size('jobs_job') FROM jobs_job"
        )
        return {
            "rows": rows,
            "bytes": (table + indexes) / rows,
            "table_bytes": table / rows,
            "index_bytes": indexes / rows,
        }
