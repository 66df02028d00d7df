"""What it costs if many processes claim from one queue."""

from __future__ import annotations

from typing import Any

from benchmarks import completions
from benchmarks.figures.figure import Column, Figure
from benchmarks.goals import Goal
from benchmarks.scene import Scene


class Many(Figure):
    name = "many"
    title = "Fifty processes"
    about = (
        "*idem* by 8 and by 50 processes, on one queue of 100,000; and by as many bare processes, which share "
        "the numbers beforehand. What is lost from 8 to 50 is lost to the machine in the one case, and to the "
        "claims as well in the other. The rate of the middle four fifths of the completions."
    )
    columns = (
        Column(key="at_8_per_s", title="8 processes, jobs/s", better="more"),
        Column(key="at_50_per_s", title="50 processes, jobs/s", better="more", is_drawn=True),
        Column(key="kept", title="50 to 8", digits=2, better="more"),
    )
    goals = (
        Goal(
            figure="many",
            key="kept",
            against=("bare",),
            least=0.9,
            says="50 processes to 8, beside the same of bare processes",
        ),
    )
    peers = ("bare", "jobs")
    parts = ({"number": 100_000, "seconds": 9},)
    quick_parts = ({"number": 3_000, "seconds": 5},)
    rounds = 1
    timeout = 300.0

    def measure(self, scene: Scene, number: int = 0, seconds: float = 0, **options: Any) -> dict[str, float | None]:
        rates = {}
        for processes in (8, 50):
            scene.empty()
            scene.fill("idem", number)
            with scene.workers(processes):
                scene.wait(number, seconds)
            rates[processes] = completions.rate(completions.read(), trim=0.1)
        few, most = rates[8], rates[50]
        return {"at_8_per_s": few, "at_50_per_s": most, "kept": most / few if few and most else None}
