"""The part of durable tasks in the core."""

from __future__ import annotations

import datetime
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from jobs.doors import Extension


class Durable(Extension):
    """Options of a task that come on top:

    durable (bool, default False):
        The body goes on where it stopped: ``self.step()``, ``self.sleep()``, ``self.wait_for()``, ``self.gather()``.
    deadline (timedelta, or seconds):
        Of a durable task: it is cancelled if it has not ended so long after its call.
    """

    options = {
        "durable": ("True or False", (bool,)),
        "deadline": ("a timedelta, or a number of seconds", (datetime.timedelta, int, float)),
    }
    looks = {"signals": "jobs_signal WHERE taken_by IS NULL AND look_until > {epoch}"}

    def declared(self, task: Any) -> None:
        task.durable, task.deadline = getattr(task, "durable", False), getattr(task, "deadline", None)
        if not task.durable:
            if task.deadline is not None:
                raise ValueError("deadline= is of durable tasks: add durable=True, or use expires= in the call")
            return
        for option, why in (
            ("idempotency_key", "its effects are not one transaction: call once() in a step"),
            ("lock", "it would be held while the task waits: take lock() in a step"),
        ):
            if inspect.getattr_static(task, option) is not None:
                raise ValueError(f"durable=True and {option}= do not go together: {why}")
        if "atomic" in task.declared and task.atomic:
            raise ValueError("durable=True and atomic=True do not go together: each step is a transaction of its own")
        from jobs.contrib.durable.body import METHODS, wrap

        task.atomic, task.is_fenced = False, True
        if task.deadline is not None and not isinstance(task.deadline, datetime.timedelta):
            task.deadline = datetime.timedelta(seconds=task.deadline)
        if task.deadline is not None and task.deadline <= datetime.timedelta():
            raise ValueError(f"deadline={task.deadline} is over when the job is called: it has to be above zero")
        for name, method in METHODS.items():
            setattr(task, name, method)
        run = inspect.getattr_static(task, "run")
        # A task may be bound to its app more than once.
        task.run = run if hasattr(run, "goes_on") else wrap(run)

    def called(self, task: Any) -> Callable[[Any, Any], None] | None:
        if not task.durable or task.deadline is None:
            return None

        def limit(task: Any, job: Any) -> None:
            if job.expires_at is None:
                job.expires_at = job.created_at + task.deadline

        return limit

    def completing(self, run: Any) -> Callable[[], None] | None:
        is_child, has_deadline = getattr(run.job, "batch_id", None) is not None, run.task.deadline is not None
        if not is_child and not has_deadline:
            return None
        from jobs.contrib.durable import ends, history

        def write() -> None:
            if has_deadline:
                history.end_in_time(run)
            if is_child:
                ends.after_child(run.job)

        return write

    def ended(self, job: Any, error: Mapping[str, Any]) -> Callable[[], None] | None:
        from jobs.contrib.durable import ends

        return ends.of(job, error)

    def again(self, jobs: Any, using: str) -> Mapping[str, Any]:
        from jobs.contrib.durable import history

        history.run_again(jobs, using)
        return {}

    def deleting(self, jobs: Any, using: str, of: Any) -> None:
        from jobs.contrib.durable import ends

        ends.forget(of, using)

    def ticked(self, answers: Mapping[str, Mapping[str, Any]]) -> None:
        if found := [alias for alias, said in answers.items() if said["signals"]]:
            from jobs.contrib.durable import signals
            from jobs.store import databases

            databases.everywhere(signals.look_again, found)

    def disown(self, using: str, is_dry: bool) -> Mapping[str, int]:
        from jobs.contrib.durable import signals

        # A job of the copy would take a signal that was sent to the original.
        found = signals.untaken(using)
        return {"signals": found.count() if is_dry else found.order_by().delete()[0]}

    def idle(self, app: Any, using: str, clock: Any) -> bool:
        from jobs.contrib.durable import signals

        return signals.look_again(using)

    def prune(self, using: str, budget: float) -> Mapping[str, int]:
        from jobs.contrib.durable import signals

        return {"signals": signals.prune(using, budget)}
