"""A claim of several jobs behind a long body. The process stands still wherever it does in the model."""

from __future__ import annotations

import time
import uuid
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from celery import current_app
from django.db import transaction

from jobs.lifecycle import claims, transitions
from jobs.lifecycle import worker_state as states
from jobs.lifecycle.worker_state import BUSY, worker_state
from jobs.maintenance.rescue import OwnJobs
from jobs.models import Job, Node, State
from jobs.store.base import Claim
from jobs.worker import runner
from proof.player import Differs, Player, Session, stopping
from tests import tasks
from tests.models import Effect

STATES = {State.READY: 0, State.RUNNING: 1, State.SUCCEEDED: 2}
BEGAN, RENEWED = 1000, 32
POINTS = ("_name", "looks", "renew", "begins", "completes")


class Batch(Player):
    model = "batch"

    def play(self, steps: Any) -> None:
        self.now = BEGAN

        def look() -> float:
            Session.reach("looks")
            return self.now

        with ExitStack() as stack:
            stack.enter_context(patch.object(runner, "time", SimpleNamespace(monotonic=look, time=time.time)))
            stack.enter_context(patch.object(states, "time", SimpleNamespace(monotonic=lambda: self.now)))
            stack.enter_context(patch.object(runner.Runner, "_go", lambda *args: self._body(*args)))
            stack.enter_context(stopping(runner.Runner, "_name"))
            stack.enter_context(stopping(claims, "renew"))
            stack.enter_context(stopping(OwnJobs, "_hand_back_claim"))
            super().play(steps)

    def reset(self) -> None:
        super().reset()
        worker_state.wipe()
        worker_state.node = Node.objects.create(hostname="here", pid=1).pk
        self.node = Node.objects.create(hostname="here", pid=2).pk
        self.ids = [uuid.UUID(tasks.noop.delay(number).id) for number in range(3)]
        self.others: dict[int, Job] = {}

    def clean(self) -> None:
        super().clean()
        worker_state.wipe()

    def _body(self, _: Any, run: Any, go: Any) -> None:
        Session.reach("begins")
        Session.reach("completes")
        self.done = self._complete(run.job)

    def _complete(self, job: Job) -> bool:
        with transaction.atomic():
            Effect.objects.create(key=str(self.ids.index(job.pk)))
            done = transitions.succeed(job, None, 0.0)
            transaction.set_rollback(not done)
        return done

    def take(self, who: str, what: str = "", *rest: str) -> None:
        if (who, what) == ("0", "claims"):
            self._claim_all()
        else:
            super().take(who, what, *rest)

    def _claim_all(self) -> None:
        jobs = claims.Claimer().take("default", Claim(self.queue, worker_state.node, 5, 1))
        self.expect([job.pk for job in jobs], self.ids)
        process = runner.Runner(current_app, "here")

        def run_all() -> None:
            for index, job in enumerate(jobs):
                process._run(tasks.noop, job, 1 if index < 2 else 0, BEGAN)
            process.slot.rest(BUSY)

        self.session("0").start(run_all, *POINTS)

    def _from(self, who: str, point: str) -> Any:
        session = self.session(who)
        self.expect(session.at, point)
        session.go_on()
        return session.found

    def _names(self, who: str, j: int, given: dict[str, str]) -> None:
        self._from(who, "_name")

    def _looks(self, who: str, j: int, given: dict[str, str]) -> None:
        self._from(who, "looks")

    def _renews(self, who: str, j: int, given: dict[str, str]) -> None:
        self.expect(self._from(who, "renew"), given["owned"] == "1")

    def _begins(self, who: str, j: int, given: dict[str, str]) -> None:
        if who == "0":
            self._from(who, "begins")

    def _completes(self, who: str, j: int, given: dict[str, str]) -> None:
        if who == "0":
            self._from(who, "completes")
        else:
            self.done = self.session(who).do(partial(self._complete, self.others.pop(j)))
        self.expect(self.done, given["owned"] == "1")

    def _rests(self, who: str, j: Any, given: dict[str, str]) -> None:
        self.expect(self.session(who).at, "")

    def _sees(self, who: str, j: int, given: dict[str, str]) -> None:
        session = self.session(who)
        session.start(OwnJobs(1).hand_back_waiting, "_hand_back_claim")
        self.expect(session.at, "_hand_back_claim")

    def _gives_back(self, who: str, j: Any, given: dict[str, str]) -> None:
        self._from(who, "_hand_back_claim")

    def _claims(self, who: str, j: int, given: dict[str, str]) -> None:
        self.others[j] = self.claim(self.session(who), self.node, j, int(given["token"]))

    def _ticks(self, who: str, j: Any, given: dict[str, str]) -> None:
        self.now = BEGAN + int(given["now"])

    def compare(self, words: list[str]) -> None:
        for number, row in enumerate(Job.objects.filter(pk__in=self.ids).order_by("pk")):
            token = row.token or 0
            found = [STATES.get(row.state, 9), row.lease, -token | RENEWED if token < 0 else token]
            found.append(Effect.objects.filter(key=str(number)).count())
            if found != (said := [int(word) for word in words[5 * number + 1 : 5 * number + 5]]):
                raise Differs(f"the row of job {number} is {found}, and not {said}")
