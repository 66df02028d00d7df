"""The part of async bodies in the core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobs.doors import Extension


class Aio(Extension):
    looks = {"is_asked_to_end": "jobs_cancellation"}
    instead = {
        "jobs.execution.pipeline.commit": "jobs.contrib.aio.commits.commit",
        "jobs.execution.pipeline.returned": "jobs.contrib.aio.commits.returned",
        "jobs.worker.supervisor.Supervisor": "jobs.contrib.aio.supervisor.AskingSupervisor",
    }

    def called(self, task: type[Any]) -> None:
        # Not in ``declared()``: by now all extensions have changed the task's function.
        from jobs.contrib.aio import declare

        declare.declared(task)

    def run_inline(self, run: Any) -> None:
        from jobs.contrib.aio import inline

        inline.run(run)

    def executor(self, app: Any) -> Any:
        from jobs.conf import is_ours
        from jobs.contrib.aio import bodies

        tasks = sorted(name for name, task in app.tasks.items() if is_ours(task) and task.is_async)
        return bodies.Bodies(tuple(tasks)) if tasks else None

    def ticked(self, answers: Mapping[str, Mapping[str, Any]]) -> None:
        from jobs.contrib.aio import cancellations

        cancellations.ticked(answers)
