"""Puts jobs of unknown tasks aside, and lets them go when a worker knows their task."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from jobs import extensions
from jobs.conf import conf
from jobs.conf.logs import log
from jobs.lifecycle.transitions import PARKED, change_free, error_entry, wait, waiting
from jobs.lifecycle.worker_state import worker_state
from jobs.maintenance import Seldom
from jobs.maintenance.clock import DUE_BATCHES, told, until_done
from jobs.models import AWAITING, CLAIMABLE, Job, Node, State
from jobs.models.columns import ORDER
from jobs.store import databases

#: What ``Job.waits_for`` begins with, before the name of the task.
TASK = "task:"

#: How many jobs are put aside by one statement.
MOST = 1000

#: How many unknown tasks that jobs wait for are looked at; and for each whether this worker could import it.
TASKS = 100
_imported: dict[str, bool] = {}

_seldom = Seldom(20)


def put_aside(job: Job) -> bool:
    """See ``Extension.put_aside``."""
    if _is_known_elsewhere(job):
        return False
    count = postpone(job, MOST)
    text = f"is unknown here: {count} such jobs wait for a worker that knows it"
    log(logging.WARNING, job, text, "unknown_task", count=count)
    return True


def _is_known_elsewhere(job: Job) -> bool:
    """Whether a live worker of the job's queue, other than the one that claimed it, knows its task."""
    assert job.node_id is not None
    others = Node.objects.using(job._state.db).filter(dead_at=None, stopping_at=None).exclude(pk=job.node_id)
    return any(job.task in tasks and job.queue in queues for tasks, queues in others.values_list("tasks", "queues"))


def postpone(job: Job, limit: int) -> int:
    """A claimed job, and up to ``limit`` like it, wait for a worker that knows their task. Says how many do."""
    using = str(job._state.db)
    error = error_entry("NotRegistered", f"no worker that claimed it knows the task {job.task!r}", attempt=job.lease)
    waits = {"run_at": PARKED, "waits_for": TASK + job.task}
    done = int(wait(job, PARKED, error, is_kept=False, waits_for=TASK + job.task))
    # Jobs that are held back are in no other job's way, and not in the index of the queue.
    ready = Job.objects.using(using).filter(CLAIMABLE, queue=job.queue, task=job.task)
    changes = {"state": State.SCHEDULED, "error": error, **waits}
    return done + len(change_free(ready.order_by(*ORDER), using, limit, changes))


def ticked(answers: Mapping[str, Mapping[str, Any]]) -> None:
    """The clock has looked: let jobs go if this worker knows their task."""
    parked = [using for using, found in answers.items() if found["parked"]]
    if parked and not worker_state.is_quiet and worker_state.stopping_for is None:
        databases.everywhere(lambda using: _seldom.take(using, partial(_let_go, using)), parked)


def _let_go(using: str) -> int:
    node = Node.objects.using(using).filter(pk=worker_state.node)
    if (tasks := node.values_list("tasks", flat=True).first()) is None:
        return 0
    if new := [job.task for job in _waiting(using) if job.task not in tasks and _can_import(job)]:
        # Other workers leave jobs of these tasks to this one.
        tasks = [*tasks, *new]
        node.update(tasks=tasks)
    limit = DUE_BATCHES * conf().BATCH
    return until_done(lambda: told(using, let_go(using, tasks, worker_state.queues, limit)))


def _waiting(using: str) -> Iterator[Job]:
    """One job of each task for which jobs wait, in the order of the tasks' names."""
    parked, last = Job.objects.using(using).filter(AWAITING).order_by("waits_for", "id"), TASK
    for _ in range(TASKS):
        # Step from name to name: there may be very many jobs of one task.
        job = parked.filter(waits_for__gt=last).only("task", "options", "waits_for").first()
        if job is None or not str(job.waits_for).startswith(TASK):
            return
        yield job
        last = str(job.waits_for)


def _can_import(job: Job) -> bool:
    """Whether an extension finds the job's task. The worker remembers what was found, or raised, until it ends."""
    if job.task not in _imported:
        # The project's code may raise anything.
        try:
            if not any(find(job) is not None for find in extensions.through("find")):
                return False
            _imported[job.task] = True
        except Exception:
            _imported[job.task] = False
    return _imported[job.task]


def let_go(using: str, tasks: Iterable[str], queues: Sequence[str], limit: int) -> list[str]:
    """Let go jobs that waited for a worker that knows their task. Returns the queue of each."""
    known = [TASK + task for task in tasks]
    parked = Job.objects.using(using).filter(AWAITING, waits_for__in=known, queue__in=queues)
    # All get the same time: the order of their ids is kept.
    return change_free(parked, using, limit, waiting(None))
