"""What it costs if somebody keeps a transaction open."""

from __future__ import annotations

from contextlib import closing
from statistics import median
from typing import Any

from benchmarks import completions
from benchmarks.figures.figure import Column, Figure
from benchmarks.goals import Goal
from benchmarks.scene import Scene

#: So many thousands of jobs are compared at each end.
ENDS = 5


class Held(Figure):
    name = "held"
    title = "A transaction held open"
    about = (
        "40,000 empty jobs, while another connection holds a REPEATABLE READ transaction with a snapshot, so "
        "that no dead row can be removed: the seconds of each thousand, the median of the last five beside that "
        "of the first five. In a quick run it is one hundred for one thousand."
    )
    columns = (
        Column(key="done", title="jobs"),
        Column(key="first_s", title="first, s a thousand", digits=2),
        Column(key="last_s", title="last, s a thousand", digits=2),
        Column(key="last_to_first", title="last to first", digits=2, better="less"),
    )
    goals = (
        Goal(
            figure="held",
            key="last_to_first",
            most=1.1,
            says="the last thousand beside the first, under a transaction held open",
        ),
    )
    peers = quick_peers = ("jobs",)
    parts = ({"number": 40_000, "unit": 1_000, "seconds": 100},)
    quick_parts = ({"number": 2_000, "unit": 100, "seconds": 8},)
    rounds = 1
    timeout = 200.0

    def measure(
        self, scene: Scene, number: int = 0, unit: int = 0, seconds: float = 0, **options: Any
    ) -> dict[str, float | None]:
        from django.db import connection

        scene.empty()
        scene.fill("noop", number)
        with closing(connection.copy("held")) as other:
            with other.cursor() as cursor:
                cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                cursor.execute("SELECT count(*) FROM project_user")
            with scene.workers():
                scene.wait(number, seconds)
        times = sorted(each.at for each in completions.read())
        laps = [(times[last] - times[last - unit]) / 1e9 for last in range(unit, len(times), unit)]
        if len(laps) < 2 * ENDS:
            raise RuntimeError(f"only {len(times)} jobs ran within {seconds} s")
        first, last = median(laps[:ENDS]), median(laps[-ENDS:])
        scale = 1_000 / unit
        return {
            "done": len(times),
            "first_s": first * scale,
            "last_s": last * scale,
            "last_to_first": last / first,
        }
