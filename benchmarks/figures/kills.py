"""What is lost or done twice when workers are killed in the middle of durable tasks."""

from __future__ import annotations

import random
import time
from typing import Any

from benchmarks import completions
from benchmarks.figures.figure import Column, Figure
from benchmarks.goals import Goal
from benchmarks.scene import Scene

STEPS = 10


class Kills(Figure):
    name = "kills"
    title = "Workers that are killed"
    about = (
        f"1,000 durable tasks of {STEPS} steps that each write one row. The worker, with its two processes, is killed "
        "(SIGKILL) at a random moment, about a second after it began to work, and another one is started, until all is "
        "done. A step is lost if its row is not there, and done twice if it is there twice."
    )
    columns = (
        Column(key="kills", title="workers killed"),
        Column(key="lost", title="steps lost"),
        Column(key="twice", title="steps done twice"),
        Column(key="seconds", title="seconds"),
    )
    goals = tuple(
        Goal(figure="kills", key=key, most=0, is_difference=True, unit="steps", says=f"workers killed: steps {says}")
        for key, says in (("lost", "lost"), ("twice", "done twice"))
    )
    peers = ("jobs",)
    parts = ({"number": 1_000},)
    quick_parts = ({"number": 200},)
    rounds = 1
    timeout = 600.0

    def measure(self, scene: Scene, number: int = 0, **options: Any) -> dict[str, float | None]:
        from benchmarks.project.models import User

        scene.empty()
        keys = scene.fill(f"steps_{STEPS}", number)
        User.objects.all().delete()
        began, kills = time.monotonic(), 0
        # What a killed worker had claimed is left for the last one.
        while scene.execute("SELECT 1 FROM jobs_job WHERE state = 'ready' LIMIT 1"):
            with scene.workers():
                scene.wait(completions.count() + 1, 60)
                time.sleep(random.uniform(0.5, 1.5))
            kills += 1
        with scene.workers():
            while scene.execute("SELECT 1 FROM jobs_job WHERE finished_at IS NULL LIMIT 1"):
                time.sleep(0.2)
        rows = list(User.objects.values_list("email", flat=True))
        due = {f"{key}.{step}" for key in keys for step in range(STEPS)}
        return {
            "kills": kills,
            "lost": len(due.difference(rows)),
            "twice": len(rows) - len(set(rows)),
            "seconds": time.monotonic() - began,
        }
