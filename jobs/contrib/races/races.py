"""Two jobs of a task at once: in any order of their steps, the outcome must be as if one ran after the other."""

from __future__ import annotations

import time
from collections.abc import Sequence

from jobs.contrib.copies.store import PostgresCopy
from jobs.contrib.crashtest.compare import Outcome, Varying
from jobs.contrib.crashtest.crash import Examiner
from jobs.contrib.crashtest.recorder import Operation
from jobs.contrib.crashtest.report import Finding
from jobs.contrib.races import interleave

#: PostgreSQL's code for a deadlock.
DEADLOCK = "40P01"

#: The usual cures.
STALE = "read the row under a lock, and change that: with guard(Model, pk=...) as row"
ORDER = "let everybody lock rows in the same order: guard(queryset) takes them in the order of their keys"


def meet(examiner: Examiner, most: int, seconds: float) -> None:
    """Try at most this many schedules, for at most this many seconds, and add the findings."""
    task, examination = examiner.task, examiner.examination
    if task.atomic and not any(isinstance(copy, PostgresCopy) for copy in examiner.children.copies):
        why = "on SQLite one body with a transaction waits for the other"
        examination.notes.append(f"two at once: left out, because {why}")
        return
    if task.key_templates.get("unique") is not None and task.unique_until == "finished":
        examination.notes.append("two at once: left out, because unique_until='finished' lets no second one in")
        return
    orders: list[list[interleave.Step]] = [[(0, None), (1, None)], [(1, None), (0, None)]]
    (runs, one), (_, again), (turned, other) = (_play(examiner, steps) for steps in (orders[0], *orders))
    examiner.varying = Varying(one, again)
    deadline = time.monotonic() + seconds
    # How many steps each job has if it runs first.
    for steps in interleave.schedules(len(runs[0]), len(turned[1])):
        if examination.schedules >= most or time.monotonic() > deadline:
            break
        examination.schedules += 1
        _try(examiner, steps, (again, other))


def _play(examiner: Examiner, steps: Sequence[interleave.Step]) -> tuple[list[list[Operation]], Outcome]:
    """Run both jobs at once, in this order of their steps; return the operations of each, and the outcome."""
    examiner.children.restore()
    runs = interleave.play(examiner.children, steps)
    return runs, examiner.rest([each for run in runs for each in run])


def _try(examiner: Examiner, steps: Sequence[interleave.Step], serial: Sequence[Outcome]) -> None:
    both, found = _play(examiner, steps)
    who, step = steps[0]
    assert step is not None
    operations_of = {each.number: each for each in both[who]}
    after, before = operations_of.get(step - 1), operations_of.get(step)
    fault = "two at once: one stood {}, and the other one ran"
    ended = [[each for each in one if each.error == DEADLOCK] for one in both]
    if any(ended):
        victim = 0 if ended[0] else 1
        examiner.examination.add(_deadlock(ended[victim][0], both[victim], both[1 - victim], examiner.home))
    tried = [examiner.compare(each, found, fault, (after, before), STALE) for each in serial]
    if all(tried):
        for finding in min(tried, key=len):
            examiner.examination.add(finding)


def _deadlock(
    victim: Operation, own: Sequence[Operation], others: Sequence[Operation], home: tuple[str, int]
) -> Finding:
    says = []
    for found in (own, others):
        begun = [each for each in found if each.at <= victim.ended and _locks(each)]
        says.append("; ".join(f"{word} {each}" for word, each in zip(("holds", "waits at"), begun[-2:], strict=False)))
    file, line = (victim.file, victim.line) if victim.line else home
    fault = "two at once wait for each other's rows, and the database ends one of them (deadlock)"
    return Finding("deadlock", fault, file, line, ORDER, says=sorted(says))


def _locks(operation: Operation) -> bool:
    return operation.kind == "sql" and ("FOR UPDATE" in operation.what or not operation.what.startswith("SELECT"))
