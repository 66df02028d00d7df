"""What a step of a durable task costs beside a job of its own, and workflows a second beside DBOS."""

from __future__ import annotations

from typing import Any

from benchmarks import completions, processes
from benchmarks.figures.figure import Column, Figure
from benchmarks.goals import Goal
from benchmarks.scene import Scene

#: Of the workflows that are compared with DBOS; and of those of which so little is the workflow itself that their steps
#: can be compared with jobs.
STEPS, MANY = 5, 50


class Steps(Figure):
    name = "steps"
    title = "Steps"
    about = (
        f"Workflows of {STEPS} steps that each write one row, by two processes. DBOS runs 50 of them at once in each "
        "process, in threads; ours runs one. Its transactions are committed with the note that they are done, its "
        f"steps are not. Ours also: tasks of {MANY} such steps, and jobs that write one row and nothing else. A step "
        "is one commit with its row, and so is a job. `bare` are two processes that write and commit the row, and "
        "nothing else: who commits one row at a time cannot be faster."
    )
    columns = (
        Column(key="workflows_per_s", title="workflows/s", digits=1, better="more", is_drawn=True),
        Column(key="workflow_us", title="CPU µs/workflow, PostgreSQL's with it"),
        Column(key="steps_per_s", title="steps/s", better="more"),
        Column(key="step_us", title="CPU µs/step"),
        Column(key="rows_per_s", title="jobs of one row, jobs/s", better="more"),
        Column(key="row_us", title="CPU µs/job"),
        Column(key="step_to_job", title="a step to a job", digits=2, better="less"),
    )
    goals = (
        Goal(figure="steps", key="step_to_job", most=0.6, says="a durable step beside a job of its own"),
        Goal(figure="steps", key="workflows_per_s", against=("dbos",), least=1.2, says="workflows, beside DBOS"),
    )
    peers = ("bare", "jobs", "dbos", "dbos-django")
    parts = ({"number": 2_000, "seconds": 8},)
    quick_parts = ({"number": 200, "seconds": 4},)
    timeout = 120.0

    def measure(self, scene: Scene, number: int = 0, seconds: float = 0, **options: Any) -> dict[str, float | None]:
        if scene.peer.name == "bare":
            rows, cpu = self._drain(scene, "row", STEPS * number, seconds)
            return {"rows_per_s": rows, "row_us": cpu}
        workflows, cpu = self._drain(scene, f"steps_{STEPS}", number, seconds)
        found = {"workflows_per_s": workflows, "workflow_us": cpu}
        if scene.peer.name == "jobs":
            many, cpu = self._drain(scene, f"steps_{MANY}", STEPS * number // MANY, seconds)
            rows, found["row_us"] = self._drain(scene, "row", STEPS * number, seconds)
            found |= {"steps_per_s": MANY * many, "step_us": cpu / MANY, "rows_per_s": rows}
            found["step_to_job"] = rows / (MANY * many)
        return found

    def _drain(self, scene: Scene, body: str, number: int, seconds: float) -> tuple[float, float]:
        """How many a second, and the microseconds of CPU of each."""
        scene.empty()
        scene.fill(body, number)
        with scene.workers() as pids:
            scene.wait(1, 1)
            known, used = completions.count(), self._cpu(scene, pids)
            scene.wait(number, seconds)
            more, used = completions.count() - known, self._cpu(scene, pids) - used
        rate = completions.rate(completions.read())
        if not rate or not more:
            raise RuntimeError(f"{completions.count()} of {number} ran")
        return rate, 1e6 * used / more

    def _cpu(self, scene: Scene, pids: list[int]) -> float:
        return scene.server_cpu()["postgres"] + processes.cpu_seconds(pids)
