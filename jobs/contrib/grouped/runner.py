"""Which jobs of a claim run together: neighbours of tasks with ``grouped=True`` that need no separate transaction."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from jobs.calling.calls import is_newer
from jobs.conf import is_ours
from jobs.conf.logs import log
from jobs.contrib.grouped import group
from jobs.contrib.grouped.group import Member
from jobs.lifecycle.run import Run
from jobs.lifecycle.worker_state import OLD, worker_state
from jobs.models import Job
from jobs.models.columns import ADDED
from jobs.worker.runner import WEIGHT, Runner, let_go

#: The most seconds that the bodies of a group may be expected to take, and the most bodies in a group.
GROUP_TIME, MOST = 0.02, 100

#: Columns of extensions with which a completion has nothing more to write.
SILENT = ("tags", "fair_key")

#: A job that was claimed more often runs alone: if a machine died in a group, it is not known in which body.
CLAIMS = 2

#: After a group was rolled back, its tasks run alone for this many seconds: twice as long each time, up to the longest.
PAUSE, LONGEST_PAUSE = 0.1, 60.0

#: The options of a call that give its job followers, or make other jobs wait for it.
FOLLOWED = frozenset(("link", "chain", "chord", "replaced_task_nesting"))


class GroupingRunner(Runner):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: How many jobs of this claim run alone from here on.
        self._alone = 0
        #: For each task how many seconds its body takes in a group: without the commit, often the longest part alone.
        self._bodies: dict[str, float] = {}
        #: For each task whose groups were rolled back: how often in a row, and until when it runs alone.
        self._broken: dict[str, tuple[int, float]] = {}

    def _run_all(self, jobs: list[Job]) -> None:
        self._alone = 0
        super()._run_all(jobs)

    def _run_together(self, jobs: list[Job], index: int, claimed_at: float) -> int:
        if self._alone:
            self._alone -= 1
            return 0
        # The supervisor may have given back jobs of a claim this old.
        is_old = time.monotonic() - claimed_at > OLD
        count = 0 if is_old else self._count(jobs, index)
        if count < 2:
            return 0
        using, token = str(jobs[index]._state.db), jobs[index].token or 0
        began = time.monotonic()
        done, error = group.run(self._members(jobs[index : index + count], using, token), using)
        tasks = {job.task for job in jobs[index : index + count]}
        if error is not None:
            text = f"ran in a group that was rolled back, whose jobs run one by one: {error!r}"
            log(logging.INFO, jobs[index], text, "group_broken")
            let_go(error)
            self._alone = count - 1
            self._pause(tasks)
            return 0
        for task in tasks:
            self._broken.pop(task, None)
        share = (time.monotonic() - began) / len(done)
        for member in done:
            name = member.run.job.task
            mean = self._bodies.get(name, member.took)
            self._bodies[name] = mean + WEIGHT * (member.took - mean)
            self._go(member.run, partial(member.tell, share=share))
            if member.run.told is not None:
                let_go(member.run.told)
        return len(done)

    def _count(self, jobs: list[Job], index: int) -> int:
        """How many jobs of a claim, from this one on, run together."""
        used, count, now = 0.0, 0, time.monotonic()
        for job in jobs[index : index + MOST]:
            used += self._expected(job.task)
            if used > GROUP_TIME or not self._fits(job, now):
                break
            count += 1
        return count

    def _expected(self, task: str) -> float:
        """How many seconds a body is expected to take. Of a task not yet run in a group, two bodies fit into one."""
        mean = self._means.get(task)
        return math.inf if mean is None else min(mean, self._bodies.get(task, GROUP_TIME / 2))

    def _fits(self, job: Job, now: float) -> bool:
        task = self.app.tasks.get(job.task)
        return (
            is_ours(task)
            and task.grouped
            and now >= self._broken.get(job.task, (0, 0.0))[1]
            # A job that was in trouble before gets its own transaction and its own completion.
            and not (job.retries or job.crashes or job.node_losses or job.snoozes)
            and job.lease <= CLAIMS
            # The completion of these has more to write, or they may expire.
            and job.expires_at is None
            and job.limit_key is None
            and not any(getattr(job, name) for name in ADDED if name not in SILENT)
            and FOLLOWED.isdisjoint(job.options)
            and not ("v" in job.options and is_newer(job.options))
        )

    def _members(self, jobs: list[Job], using: str, token: int) -> Iterator[Member]:
        """Yield one after the other: the worker state names the running body, so a crash counts for its job alone."""
        until = time.monotonic() + GROUP_TIME
        for number, job in enumerate(jobs):
            if number and (
                time.monotonic() + self._expected(job.task) > until
                or worker_state.stopping_for is not None
                or worker_state.stock_waits
                or self._is_wanted()
            ):
                return
            run = Run(self.app.tasks[job.task], job, using, self.slot)
            # If this process dies, the other jobs of the claim go back to wait, also those that ran before this one.
            self._name(run, token)
            yield Member(run)

    def _pause(self, tasks: set[str]) -> None:
        for task in tasks:
            times = self._broken.get(task, (0, 0.0))[0]
            pause = min(PAUSE * 2**times, LONGEST_PAUSE)
            self._broken[task] = times + 1, time.monotonic() + pause
