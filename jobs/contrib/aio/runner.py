"""Claims jobs whose bodies are coroutines, several at once, and begins and ends their runs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from contextvars import Context
from typing import Any

from django.core.cache import close_caches
from django.db import Error, transaction

from jobs import extensions, store
from jobs.conf import conf
from jobs.conf.syncpoints import reach
from jobs.contrib.aio import sentry
from jobs.contrib.aio.inline import END
from jobs.errors import LostLease, NotSettled
from jobs.execution import finish, pipeline
from jobs.lifecycle import claims, transitions
from jobs.lifecycle.run import Run
from jobs.lifecycle.wakeups import Wakeup
from jobs.lifecycle.worker_state import IDLE, ProcessState, worker_state
from jobs.models import Job
from jobs.models.values import jsonable
from jobs.store import databases
from jobs.worker.runner import Place, Runner, let_go

#: A slow look that finds nothing is repeated after this many times its own duration.
RESTS = 10


class AsyncRunner(Runner):
    """Its methods are called on the thread that has its connection, one after the other."""

    def __init__(self, app: Any, hostname: str, tasks: Sequence[str], slot: ProcessState, wakeup: Wakeup) -> None:
        super().__init__(app, hostname, slot=slot)
        self.only, self.wakeup = tasks, wakeup
        #: The token of the claim that is under way, or 0; and the tokens of claims that may or may not have committed.
        self._claiming = 0
        self._doubtful: list[tuple[str, int]] = []
        #: For each place where nothing was found: until when it is left alone, and the seconds that the last look took.
        self._rests: dict[Place, tuple[float, float]] = {}

    def take_some(self, slots: Sequence[ProcessState]) -> tuple[list[Run], bool]:
        """Claim at most one job for each slot; returns their runs, and whether there are probably more jobs.

        Race: the process may die at any point. As long as its own slot shows the token of the claim, no body was begun,
        and all rows of the claim are given back, even those that have slots already. From then on each run has a slot.
        """
        self._next = len(slots)
        runs: list[Run] = []
        try:
            jobs = self.take()
        except BaseException:
            self._doubt(*conf().DATABASES)
            raise
        self._claiming = 0
        for job, slot in zip(jobs, slots, strict=False):
            slot.occupy()
            run = Run(self.app.tasks[job.task], job, str(job._state.db), slot)
            try:
                self._name(run, 0)
            except Exception as exc:
                # A person edited the row by hand.
                self._finish_unbegun(run, exc)
                slot.free()
                continue
            runs.append(run)
        self.slot.rest(IDLE)
        return runs, len(jobs) == self._asked or self._claimer.may_find_more(jobs)

    def new_token(self) -> int:
        """A renewed token: a body that cannot roll back must not run under a claim that a crash may forget."""
        self._claiming = claims.renewed(super().new_token())
        return self._claiming

    def _in_turn(self, queues: Sequence[str]) -> Iterator[tuple[int, Place]]:
        """Leave out places where two slow looks found nothing: such looks step over many jobs of other tasks.

        The faster look counts: the other one may have made the connection, or waited for a processor.
        """
        for turn, place in super()._in_turn(queues):
            until, before = self._rests.get(place, (0.0, 0.0))
            if (began := time.monotonic()) < until:
                continue
            yield turn, place
            # Nothing was found, or the database did not answer.
            took = time.monotonic() - began
            least = min(before, took)
            if self._away.get(place[0], 0.0) < began:
                self._rests[place] = (began + RESTS * least if least > claims.SLOW_LOOK else 0.0, took)

    def _claim(self) -> list[Job]:
        for using, token in list(self._doubtful):
            if time.monotonic() < self._away.get(using, 0.0):
                continue
            try:
                transitions.hand_back_claim(using, worker_state.node, token)
            except Error as exc:
                if databases.is_lost(exc, using):
                    self._note_away(using, exc)
                    continue
                # The database refuses these rows. The supervisor gives them back, like all rows that no process has.
            self._doubtful.remove((using, token))
        return super()._claim()

    def _note_away(self, using: str, exc: Exception, took: float = 0.0) -> None:
        super()._note_away(using, exc, took)
        self._doubt(using)

    def _doubt(self, *aliases: str) -> None:
        """A claim may have committed, and only its answer got lost. Its bodies were not begun, so no attempt counts."""
        if self._claiming:
            self._doubtful += [(using, self._claiming) for using in aliases]
            self._claiming = 0

    def begin(self, run: Run, steps: pipeline.Steps) -> Any:
        """Take the run's first steps, up to its coroutine, in the context of the run. The later steps have it too."""
        if worker_state.wants_events:
            self._tell_events("send_start", run)
        vars(run)["sentry"] = scope = sentry.around(run)
        scope.__enter__()
        return self.go_on(run, steps)

    def complete(self, batch: Sequence[tuple[Run, Context]]) -> None:
        """Complete, with one statement, the runs that have ended and have nothing else to write.

        If it fails, it completes no run, and each run goes on alone: its outcome is decided there.
        """
        found: dict[str, list[tuple[Run, Any]]] = {}
        for run, own in batch:
            if run.body is not None and run.is_atomic and run.job.marker_key is None:
                with suppress(Exception):
                    found.setdefault(run.using, []).append((run, own.run(_result, run)))
        for using, runs in found.items():
            if len(runs) > 1 and self._complete(using, runs):
                for run, result in runs:
                    transitions.note_success(run.job, result)
        # As Django does after a request: close what the runs before this used.
        with suppress(Exception):
            close_caches()

    def _complete(self, using: str, runs: Sequence[tuple[Run, Any]]) -> bool:
        now, at = time.monotonic(), store.of(using)
        try:
            with at.write_mutex(), transaction.atomic(using=using):
                reach("before_commit")
                if not transitions.succeed_all([(run.job, result, now - run.began) for run, result in runs], True):
                    raise LostLease("one of them is another run's, or was asked to end")
                reach("after_completion")
            return True
        except LostLease:
            return False
        except Exception:
            # All of them or none: the answer of the COMMIT may be lost.
            return finish.is_committed(runs[0][0])

    def go_on(self, run: Run, steps: pipeline.Steps) -> Any:
        """Take the next steps, and end the run here too: each way from the loop to the thread takes its time."""
        if (step := next(steps, END)) is END:
            self._end(run)
        return step

    def _end(self, run: Run) -> None:
        took = time.monotonic() - run.entered
        vars(run)["sentry"].__exit__(None, None, None)
        if isinstance(run.told, NotSettled):
            self._unfinished.append(run.job)
        if worker_state.wants_events:
            self._tell_events("send_outcome", run, took)
        if run.task.run_over is not None:
            run.task.run_over(run.job)
        if run.told is not None:
            let_go(run.told)
        self._claimer.note_left([run.job])

    def tidy(self, using: str) -> None:
        """Tidy the connection of the calling thread."""
        with suppress(Error):
            databases.tidy(using)


def _result(run: Run) -> Any:
    """The result to keep of a body that returned. Raises if the run cannot be completed together with other runs."""
    assert run.body is not None
    follows = run.planned or run.promised is not None
    if follows or any(look(run) is not None for look in extensions.through("completing")):
        raise ValueError("something follows it")
    run.result = run.body()
    pipeline.check_returned(run.result)
    return None if run.result is None else jsonable(run.result, "the result")
