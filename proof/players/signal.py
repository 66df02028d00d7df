"""Signal against wait. A run stands still before it reads, before a step, before it waits, and before it looks."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from functools import partial
from typing import Any

from celery import current_app

from jobs.contrib.durable import signals
from jobs.contrib.durable.history import History
from jobs.contrib.durable.models import Signal as Sent
from jobs.contrib.durable.models import Step
from jobs.errors import LostLease
from jobs.lifecycle import transitions
from jobs.lifecycle.run import Run, Suspended
from jobs.models import Job, Node, State
from proof.player import Differs, Player, Session, stopping
from tests.contrib.durable import bodies

STATES = {State.READY: 0, State.RUNNING: 1, State.SCHEDULED: 2, State.SUCCEEDED: 3}
KEY = "key"
#: A run reads what is there; takes a signal in a step; waits; has ended both steps.
READS, STEP, WAITS, ENDS = "is_there", "_attempt", "waits", "ends"
#: It has not looked since its commit; nor has a sender.
LOOKS, SENDER_LOOKS = "after_suspend", "before_look"


class Signal(Player):
    model = "signal"
    tables = (*Player.tables, Sent, Step)

    def play(self, steps: Any) -> None:
        with ExitStack() as stack:
            stack.enter_context(stopping(signals, READS, "check_key"))
            stack.enter_context(stopping(History, STEP))
            super().play(steps)

    def reset(self) -> None:
        super().reset()
        self.ids = [uuid.UUID(bodies.waits.delay(KEY).id)]
        self.node = Node.objects.create(hostname="here", pid=1).pk
        self.runs: dict[str, Job] = {}

    def end(self, last: list[str]) -> None:
        """Whoever has still to look does so, and a worker looks again: at the end of the model there is nothing."""
        for session in self._sessions.values():
            if session.at in (LOOKS, SENDER_LOOKS):
                session.end_call()
        signals.look_again("default")
        for step in last:
            self.compare(step.split()[1:])

    # Those who send

    def _looks_first(self, who: str, j: Any, given: dict[str, str]) -> None:
        self.session(who).start(partial(signals.signal, KEY), "check_key")

    def _sends(self, who: str, j: Any, given: dict[str, str]) -> None:
        session = self.session(who)
        if session.at:
            session.go_on(SENDER_LOOKS)
        else:
            session.start(partial(signals.signal, KEY), SENDER_LOOKS)

    def _looks(self, who: str, j: Any, given: dict[str, str]) -> None:
        if who == "t":
            signals.look_again("default")
            return
        session = self.session(who)
        self.expect(session.at, LOOKS if who[0] == "w" else SENDER_LOOKS)
        session.end_call()

    def _wakes(self, who: str, j: Any, given: dict[str, str]) -> None:
        """Whoever looks does it."""

    # The runs

    def _body(self, job: Job) -> bool:
        run: Any = Run(current_app.tasks[bodies.waits.name], job, "default", None)  # type: ignore[arg-type]
        history = History(run)
        try:
            for name in ("first", "second"):
                history.wait_for(KEY, name, None)
        except Suspended as exc:
            Session.reach(WAITS)
            return exc.write()
        except LostLease:
            return False
        Session.reach(ENDS)
        return transitions.succeed(job, None, 0.0)

    def _start(self, who: str) -> None:
        session = self.session(who)
        session.die()
        session.start(partial(self._body, self.runs[who]), READS, STEP, WAITS, ENDS)

    def _claims(self, who: str, j: Any, given: dict[str, str]) -> None:
        session = self.session(who)
        session.die()
        self.runs[who] = self.claim(session, self.node, 0)
        self._start(who)

    def _finds_none(self, who: str, j: Any, given: dict[str, str]) -> None:
        session = self.session(who)
        if session.at != WAITS:
            session.go_on(WAITS)
        self.expect(session.at, WAITS)

    def _takes(self, who: str, j: Any, given: dict[str, str]) -> None:
        session = self.session(who)
        if session.at == READS:
            session.go_on(STEP, WAITS)
        self.expect(session.at, STEP)
        session.found = None
        session.go_on(READS, STEP, WAITS, ENDS)
        if session.found is None:
            raise Differs("the step is not done")

    def _waits(self, who: str, j: Any, given: dict[str, str]) -> None:
        session = self.session(who)
        self.expect(session.at, WAITS)
        session.go_on(LOOKS)
        self.expect(session.at, LOOKS)

    def _lost(self, who: str, j: Any, given: dict[str, str]) -> None:
        self.expect(self.session(who).end_call(), False)

    def _completes(self, who: str, j: Any, given: dict[str, str]) -> None:
        session = self.session(who)
        self.expect(session.at, ENDS)
        self.expect(session.end_call(), True)

    def _dies(self, who: str, j: Any, given: dict[str, str]) -> None:
        session = self.session(who)
        if session.at == WAITS:
            # It may have been taken for dead only: then it reads again.
            self._start(who)
        elif session.at in (LOOKS, SENDER_LOOKS):
            session.die()

    def _rescues(self, who: str, j: Any, given: dict[str, str]) -> None:
        self.expect(transitions.hand_back(Job.objects.get(pk=self.ids[0]), 0), True)

    def compare(self, words: list[str]) -> None:
        row = Job.objects.get(pk=self.ids[0])
        found = [STATES.get(row.state, 9), row.lease, Step.objects.filter(state=Step.State.DONE).count()]
        found += [Sent.objects.count(), Sent.objects.exclude(taken_by=None).count()]
        state, lease, steps, *signals_said = (int(word) for word in words if word.isdigit())
        if found != (said := [state, lease, steps, sum(signals_said[::2]), sum(signals_said[1::2])]):
            raise Differs(f"the rows are {found}, and not {said}")
