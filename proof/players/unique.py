"""One waiting job per key."""

from __future__ import annotations

from typing import Any

from django.test import override_settings

from jobs.errors import UniqueBusy
from jobs.lifecycle import transitions
from jobs.models import Job, Node, State
from proof.player import Differs, Player
from tests import tasks
from tests.models import Effect

STATES = {State.READY: 1, State.SCHEDULED: 1, State.RUNNING: 2, State.SUCCEEDED: 3, State.FAILED: 4}


class Unique(Player):
    """A change is a row of ``Effect``; what a caller does between its begin and its commit is one transaction."""

    model = "unique"
    #: Whoever inserts waits for so many seconds.
    wait = 0.3

    def play(self, steps: Any) -> None:
        with override_settings(JOBS={"UNIQUE_WAIT": self.wait}):
            super().play(steps)

    def reset(self) -> None:
        super().reset()
        self.ids = [None] * 3
        #: The job that a caller has inserted, and not committed.
        self.open: dict[str, int] = {}
        self.node = Node.objects.create(hostname="here", pid=1).pk
        self.runs: dict[int, Job] = {}

    def _changes(self, who: str, j: Any, given: dict[str, str]) -> None:
        Effect.objects.create(key="change")

    def _call(self, who: str) -> Any:
        """The id that the call has got, and whether it has made that job."""
        before = set(Job.objects.values_list("pk", flat=True))

        def call() -> Any:
            tasks.summary.delay("today")
            return set(Job.objects.values_list("pk", flat=True)) - before

        try:
            return self.session(who).do(call)
        except UniqueBusy:
            raise Differs("it waits for the other call") from None

    def _finds_one(self, who: str, j: Any, given: dict[str, str]) -> None:
        self.session(who).begin()
        self.expect(self._call(who), set())
        if self.is_lazy:
            self.session(who).end(commits=True)

    _finds_an_open_one = _finds_one

    def _inserts(self, who: str, j: int, given: dict[str, str]) -> None:
        self.open[who] = j
        if not self.is_lazy:
            self._insert(who, j)

    def _insert(self, who: str, j: int) -> None:
        self.session(who).begin()
        made = self._call(who)
        if len(made) != 1:
            raise Differs(f"it made {len(made)} jobs")
        (self.ids[j],) = made

    def _commits(self, who: str, j: Any, given: dict[str, str]) -> None:
        mine = self.open.pop(who, None)
        if mine is not None and self.is_lazy:
            self._insert(who, mine)
        self.session(who).end(commits=True)

    def _rolls_back(self, who: str, j: Any, given: dict[str, str]) -> None:
        self.ids[self.open.pop(who)] = None
        self.session(who).end(commits=False)
        Effect.objects.filter(pk=Effect.objects.values_list("pk").first()[0]).delete()

    def _claims(self, who: str, j: int, given: dict[str, str]) -> None:
        self.runs[j] = self.claim(self.session(who), self.node, j)

    def take(self, who: str, what: str = "", *rest: str) -> None:
        if what == "reads":
            self.expect(Effect.objects.count(), int(rest[0]))
        else:
            super().take(who, what, *rest)

    def _completes(self, who: str, j: int, given: dict[str, str]) -> None:
        self.expect(transitions.succeed(self.runs.pop(j), None, 0.0), True)

    def _retries(self, who: str, j: int, given: dict[str, str]) -> None:
        error = transitions.error_entry("E", "m")
        self.expect(transitions.retry(self.runs.pop(j), None, error, {}), True)

    def compare(self, words: list[str]) -> None:
        states = dict(Job.objects.values_list("pk", "state"))
        for j, key in enumerate(self.ids):
            said = 0 if j in self.open.values() else int(words[2 * j + 1])
            if (found := STATES.get(states.get(key), 0)) != said:
                raise Differs(f"the state of job {j} is {found}")
