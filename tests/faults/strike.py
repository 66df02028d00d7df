"""A fault that strikes a process in the middle of what it claimed: at its first, its middle or its last row."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from django.db.models.signals import post_save

from jobs.conf import syncpoints
from jobs.lifecycle.run import Run
from jobs.models import Job
from jobs.worker import runner
from shop import points
from tests.faults.process import Process
from tests.helpers.servers import wait_for
from tests.models import Effect

#: Claims with fewer rows are let pass.
LEAST = 5

VARIABLE = "JOBS_TEST_STRIKE"


class Strike:
    """``Strike(tmp_path, "middle", "body", "stop")``, for ``Worker(**strike.env)``.

    Parameters:
        place: ``first``, ``middle`` or ``last`` of the rows of a claim.
        point: a sync point; or ``body``, after its effect; ``named``, when the worker state says what is
            run; ``between``, before that.
        action: ``kill``, ``stop`` (SIGSTOP), ``wait`` (until ``go()``) or ``hang`` (for a minute); once.
    """

    def __init__(self, directory: Path, place: str, point: str, action: str) -> None:
        self._directory = directory
        self.env = {VARIABLE: json.dumps([str(directory), place, point, action])}

    def wait(self, timeout: float = 30.0) -> None:
        """Wait until it has struck; then there is the ``process``, the ``job``, and those ``before`` and ``behind``."""
        file = self._directory / "struck"
        wait_for(lambda: file.exists() and file.read_text().endswith("]"), timeout, "it strikes")
        pid, index, keys = json.loads(file.read_text())
        self.process = Process(pid)
        self.job, self.before, self.behind = keys[index], keys[:index], keys[index + 1 :]

    def go(self) -> None:
        (self._directory / "go").touch()

    def wait_behind(self, timeout: float, state: str = "succeeded") -> None:
        """Wait until those behind the struck row are all in this state."""
        rows = Job.objects.filter(pk__in=self.behind)
        wait_for(
            lambda: set(rows.values_list("state", flat=True)) == {state}, timeout, f"what waits behind it is {state}"
        )


def arm() -> None:
    """In a process of the worker."""
    directory, place, point, action = json.loads(os.environ[VARIABLE])
    keys: list[str] = []

    def strike(index: int) -> None:
        if len(keys) < LEAST or index != {"first": 0, "middle": len(keys) // 2, "last": len(keys) - 1}[place]:
            return
        try:
            file = Path(directory, "struck").open("x")
        except FileExistsError:
            return
        with file:
            file.write(json.dumps([os.getpid(), index, keys]))
        match action:
            case "wait":
                while not Path(directory, "go").exists():
                    time.sleep(0.01)
            case "hang":
                time.sleep(60)
            case _:
                os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGSTOP)

    def run_all(self: Any, jobs: list[Job]) -> None:
        keys[:] = [str(job.pk) for job in jobs]
        _run_all(self, jobs)

    def name(self: Any, run: Run, batch: int) -> None:
        index = keys.index(str(run.job.pk))
        if point == "between":
            strike(index)
        _name(self, run, batch)
        reached[:] = [index]
        if point == "named":
            strike(index)

    def reach(reached_point: str) -> None:
        if reached_point == point and reached:
            strike(reached[0])

    def saved(**kwargs: Any) -> None:
        if reached:
            strike(reached[0])

    # Else a busy machine claims them one by one.
    runner.BATCH_TIME *= 10
    reached: list[int] = []
    _run_all, _name = runner.Runner._run_all, runner.Runner._name
    runner.Runner._run_all = run_all  # type: ignore[method-assign]
    runner.Runner._name = name  # type: ignore[method-assign]
    if point in points.POINTS:
        reach.point = point  # type: ignore[attr-defined]
        syncpoints.arm(reach)
    if point == "body":
        post_save.connect(saved, sender=Effect, weak=False)
