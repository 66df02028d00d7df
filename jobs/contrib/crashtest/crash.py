"""Kill a run at every point where it can die, and compare what is left."""

from __future__ import annotations

import inspect
import json
import os
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.db import connections
from django.db.transaction import TransactionManagementError

from jobs import extensions
from jobs.conf import conf, is_ours
from jobs.contrib.copies import copies
from jobs.contrib.crashtest import child, compare, recorder
from jobs.contrib.crashtest.child import Children
from jobs.contrib.crashtest.compare import Difference, Outcome, Varying
from jobs.contrib.crashtest.recorder import Operation
from jobs.contrib.crashtest.report import Examination, Finding, as_html
from jobs.contrib.redaction.display import shown
from jobs.models import Job
from jobs.store import databases

#: At most so many points are tried. If there are more, those after effects and commits come first.
POINTS = 150

#: How many more whole runs are looked at before a value that differs is called a finding; and before each further one.
AGAIN, ONCE_MORE = 4, 1

#: At most so many schedules of two runs at once are tried, and for so many seconds.
BUDGET = (40, 2.0)

#: The usual cure, in one sentence.
CURES = {
    "key": "hand on a key that is the same in every run: a Message-ID or an Idempotency-Key made of "
    "self.job.idempotency_key, or effect()'s call.key",
    "message": "give the stock task base=jobs.Task: its call is a row of the transaction then",
    "hook": "what on_commit() does is lost with its process: enqueue a job for it in the transaction",
    "cache": "a cache is no guard, because it keeps what the transaction rolls back: use idempotency_key=, or once()",
    "flag": "say that it was done in the transaction that completes the job (leave atomic=False out), not before it",
    "transaction": "commit together what belongs together: leave atomic=False out, or put it into one "
    "transaction.atomic() with once()",
    "step": "put it into a step, self.step(name, function, ...): what stands between steps runs again with each run",
    "again": "let a second run go on from what the first one committed: once(), guard() and a look at the row",
    "marker": "leave the marker in the transaction of the effects: idempotency_key= of an atomic task does",
}


class NotIdempotent(AssertionError):
    """A run with a fault leaves something else than a run without one.

    ``findings`` says where, what, and the usual cure. ``examination`` also says what was tried.
    """

    def __init__(self, examination: Examination) -> None:
        super().__init__(str(examination))
        self.examination, self.findings = examination, examination.findings


def assert_idempotent(
    task: Any,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    beside: Sequence[Any] | None = None,
    budget: tuple[int, float] = BUDGET,
    report: str | os.PathLike[str] | None = None,
) -> Examination:
    """Assert that a run of the task may die anywhere, or meet another one, and still leaves what one whole run leaves.

    First the task runs once, and each statement, commit, mail, HTTP request, cache write and message is noted. For each
    of these points the task then runs in a process that is killed there; the job is rescued, and runs again as in a
    worker. Last, two jobs of the task run at once, and one interrupts the other at each step. What is left is compared:
    the rows of all models, and effects by their keys. All of this happens in copies of the databases.

    Parameters:
        args, kwargs: the arguments of the call.
        beside: the arguments of the second job of two at once; by default the same.
        budget: how many schedules of two at once are tried at the most, and for how many seconds; ``(0, 0)``: none.
        report: a file for a report in HTML. It is written even if nothing is found.

    Raises:
        NotIdempotent: an ``AssertionError``; its text names the lines, what differs, and the cures.
        TransactionManagementError: the test is inside a transaction, which no other process can see.
        RuntimeError: the task fails even without a fault, or its database cannot be copied.
    """
    examination = examine(task, args, kwargs, beside=beside, budget=budget)
    if report is not None:
        Path(report).write_text(as_html(examination))
    if examination.findings:
        raise NotIdempotent(examination)
    return examination


def examine(
    task: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    beside: Sequence[Any] | None = None,
    budget: tuple[int, float] = BUDGET,
    is_sealed: bool = False,
) -> Examination:
    """Return what :func:`assert_idempotent` would find. ``is_sealed``: the runs send no mail and no HTTP request."""
    if not is_ours(task):
        raise TypeError(f"{task!r} is no task of jobs: nothing of its runs is kept, so nothing can be said of them")
    for alias in conf().DATABASES:
        if databases.in_test(alias) or connections[alias].in_atomic_block:
            raise TransactionManagementError(
                "assert_idempotent() runs the task in other processes, which see nothing of the transaction that is "
                "open here: use TransactionTestCase (pytest: django_db(transaction=True)), and call it outside of "
                "transaction.atomic()"
            )
    began = time.monotonic()
    with (
        _ending_in_order(),
        tempfile.TemporaryDirectory(prefix="jobs-crashtest-") as name,
        copies.copied(Path(name)) as found,
    ):
        examination = Examiner(task, args, kwargs or {}, Children(found, Path(name), is_sealed)).run(beside, budget)
    examination.seconds = time.monotonic() - began
    return examination


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Remove the copies even if this process is told to end: they hold everything that the databases hold."""
    is_main = threading.current_thread() is threading.main_thread()
    silent = [number for number in child.ENDS if is_main and signal.getsignal(number) == signal.SIG_DFL]
    for number in silent:
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        for number in silent:
            signal.signal(number, signal.SIG_DFL)


class Examiner:
    def __init__(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], children: Children) -> None:
        self.task, self.args, self.kwargs, self.children = task, args, kwargs, children
        seen = shown(Job.of({"task": task.name, "args": list(args), "kwargs": dict(kwargs)}))
        self._again = AGAIN
        self.examination = Examination(task.name, f"{task.name}({seen.arguments})")
        code = getattr(inspect.unwrap(task.run), "__code__", None)
        #: The place of a finding for which no line of the task is known.
        self.home = (recorder.shown(code.co_filename), code.co_firstlineno) if code else ("", 0)

    def run(self, beside: Sequence[Any] | None, budget: tuple[int, float]) -> Examination:
        self.children.do(child.forget_others)
        self.job = self._enqueue(self.args, self.kwargs)
        self.expected = self._whole()
        self.varying = Varying(self.expected, self._whole())
        self.examination.operations = self.expected.operations
        if not self.expected.does_something:
            text = "it wrote no row, and sent nothing: what is found of such a call says little; choose one that does"
            self.examination.notes.append(text)
        self.examination.points = self._points()
        for points in alike(self.examination.points, self.expected.operations):
            self._kill(points)
        is_keyed = beside is None and "idempotency_key" in self.task.key_templates
        if is_keyed or min(budget) > 0:
            self.children.restore()
            self.second = self._enqueue(*((self.args, self.kwargs) if beside is None else (beside, {})))
        if is_keyed:
            self._repeat()
        if min(budget) > 0:
            for module in extensions.modules("races"):
                module.meet(self, *budget)
        return self.examination

    def _enqueue(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> uuid.UUID:
        answer = self.children.do(lambda: child.enqueue(self.task, tuple(args), dict(kwargs))).answer
        for copy in self.children.copies:
            copy.freeze()
        return uuid.UUID(answer)

    def _outcome(self, found: Sequence[Operation], *jobs: uuid.UUID) -> Outcome:
        changes = [each for copy in self.children.copies for each in copy.changes()]
        rows = {uuid.UUID(each.key): each.after for each in changes if each.model is Job and each.before and each.after}
        states = [(rows[key]["state"], _error(rows[key]["error"])) if key in rows else ("ready", "") for key in jobs]
        return Outcome(changes, list(found), states)

    def _whole(self) -> Outcome:
        """A run without a fault."""
        self.children.restore()
        outcome = self._outcome(self.children.do(child.run_whole, job=self.job).operations, self.job)
        [(state, error)] = outcome.jobs
        if state != "succeeded":
            says = f"{state}: {error or 'it waits; send a signal that it waits for before: jobs.signal()'}"
            raise RuntimeError(f"{self.examination.call} does not succeed without a fault: {says}")
        return outcome

    def _points(self) -> list[int]:
        """The numbers of the operations after which it is killed; 0 is before the first one."""
        points = [0, *(each.number for each in self.expected.operations if each.is_done and each.is_own)]
        if len(points) > POINTS:
            last = {each.number for each in self.expected.operations if each.kind != "sql"}
            kept = sorted(points, key=lambda point: point not in last)[:POINTS]
            self.examination.notes.append(f"of {len(points)} points {POINTS} were tried")
            points = sorted(kept)
        return points

    def _kill(self, points: Sequence[int]) -> None:
        """Kill the run at the last of several points at which a kill leaves the same."""
        self.children.restore()
        point = points[-1]
        dying = self.children.do(child.run_all, job=self.job, dies_after=point)
        rescued = self.children.do(child.go_on, job=self.job)
        found = self._outcome([*dying.operations, *rescued.operations], self.job)
        after = next((each for each in self.expected.operations if each.number == point), None)
        before = next((each for each in self.expected.operations if each.number > point and each.is_own), None)
        for finding in self.compare(self.expected, found, "killed {}", (after, before)):
            finding.points += points
            self.examination.add(finding)

    def compare(
        self, expected: Outcome, found: Outcome, fault: str, between: Sequence[Operation | None], cure: str = ""
    ) -> list[Finding]:
        """
        Parameters:
            fault: in words; ``{}`` stands for its place.
            between: the operations after and before which it happened.
            cure: the cure if rows differ; by default the operation before the fault decides.
        """
        after, before = between
        place = ", ".join(f"{word} {each}" for word, each in (("after", after), ("before", before)) if each)
        fault = fault.format(place or "at its end")
        file, line = next(((each.file, each.line) for each in (after, before) if each and each.line), self.home)
        findings = []
        for operation, want, have in compare.effects(expected, found, self.varying.keys):
            where = (operation.file, operation.line) if operation.line else (file, line)
            kind, says = "twice", f"{_counted(operation, want, have)}, without a key"
            why = "message" if operation.kind == "celery" else "key"
            if have < want:
                kind, says, why = "lost", f"{_counted(operation, want, have)}: it is lost", _lost_by(after)
                if why != "hook" and after is not None and after.line:
                    # This line made the next run believe that the effect had happened.
                    where = (file, line)
            findings.append(Finding(kind, fault, *where, CURES[why], says=[says]))
        if found.failure and not expected.failure:
            says = f"the job does not succeed: {found.failure}"
            findings.append(Finding("failed", fault, file, line, CURES["again"], says=[says]))
        elif differences := self._differences(expected, found):
            usual = "step" if getattr(self.task, "durable", False) else "transaction"
            cure = cure or CURES["hook" if _lost_by(after) == "hook" else usual]
            findings.append(Finding("rows", fault, file, line, cure, differences, [str(each) for each in differences]))
        return findings

    def _differences(self, expected: Outcome, found: Outcome) -> list[Difference]:
        """What differs, and does not differ between whole runs as well: the first two may have been alike by chance."""
        differences = self.varying.differences(expected, found)
        # Of two runs at once it is known from both orders what may differ.
        while differences and self._again and expected is self.expected:
            self._again -= 1
            self.varying.widen(self.expected, self._whole())
            differences = self.varying.differences(expected, found)
        self._again = max(self._again, ONCE_MORE)
        return differences

    def _repeat(self) -> None:
        """A second job of the same idempotency key has nothing to do."""
        self.children.restore()
        twice = self.rest()
        differences = self.varying.differences(self.expected.without_jobs(), twice.without_jobs())
        says = [str(each) for each in differences]
        says += [_counted(*each) for each in compare.effects(self.expected, twice, self.varying.keys)]
        if says:
            fault, (file, line) = "a second job of the same idempotency_key", self.home
            self.examination.add(Finding("again", fault, file, line, CURES["marker"], differences, says))

    def rest(self, found: Sequence[Operation] = ()) -> Outcome:
        """What is left once everything that still waits has run: a snooze, or what the two enqueued."""
        outcome = self._outcome(found, self.job, self.second)
        if outcome.is_over:
            return outcome
        rest = self.children.do(child.run_all)
        return self._outcome([*found, *rest.operations], self.job, self.second)


def alike(points: Sequence[int], operations: Sequence[Operation]) -> list[list[int]]:
    """Points that are one: between statements of an open transaction, with nothing else between them.

    A kill at any of them rolls back all of these statements. The run is killed after the last one, because by then the
    unseen effects between them have happened too.
    """
    is_open = {each.number for each in operations if each.is_open}
    found: list[list[int]] = []
    for point in points:
        if point in is_open and point - 1 in is_open and found and found[-1][-1] == point - 1:
            found[-1].append(point)
        else:
            found.append([point])
    return found


def _counted(operation: Operation, want: int, have: int) -> str:
    return f"{operation.what}: {have} times, and not {want}"


def _lost_by(after: Operation | None) -> str:
    if after is not None and after.kind == "cache":
        return "cache"
    return "hook" if after is not None and after.kind == "commit" and not after.line else "flag"


def _error(error: Any) -> str:
    error = json.loads(error) if isinstance(error, str) else error
    return f"{error['type']}: {error['message']}" if isinstance(error, dict) else ""
