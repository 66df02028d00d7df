"""Who counts when a node dies."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from functools import partial
from typing import Any

from jobs.lifecycle import claims, transitions
from jobs.maintenance import rescue
from jobs.models import Job, Node, State
from proof.player import Differs, Player, stopping
from tests import tasks

STATES = {State.READY: 0, State.RUNNING: 1, State.SUCCEEDED: 2}
#: A rescuer stands still before each row that it gives back.
STOP = "finish_running"


class Rescue(Player):
    model = "rescue"

    def __init__(self) -> None:
        super().__init__()
        if self.is_lazy:
            # Nobody locks a row there.
            self.flags = ("NO_LOCKS",)
        self._stops = ExitStack()
        self._stops.enter_context(stopping(transitions, STOP))

    def close(self) -> None:
        self._stops.close()
        super().close()

    def _init(self, who: str, j: Any, given: dict[str, str]) -> None:
        rescue._reported.clear()
        rescue._waiting.clear()
        self.ids = [uuid.UUID(tasks.noop.delay(number).id) for number in range(3)]
        dead, self.node = (Node.objects.create(hostname="here", pid=number).pk for number in range(2))
        at = int(given["at"][1:])
        jobs = claims.Claimer().claim("default", self.queue, dead, 5)
        self.expect([job.pk for job in jobs], self.ids)
        for job in jobs[:at] if given["unfinished"] == "7" else ():
            self.expect(transitions.succeed(job, None, 0.0), True)
        if given["renewed"] == "1":
            self.expect(claims.renew(jobs[at]), True)
        self.expect(rescue.bury(dead), 1)

    def _looks(self, who: str, j: int, given: dict[str, str]) -> None:
        self.session(who).start(partial(rescue.rescue_all, "default"), STOP)

    def _gives_back(self, who: str, j: int, given: dict[str, str], is_done: bool = True) -> None:
        session = self.session(who)
        if not session.at:
            raise Differs("it gives back nothing more")
        session.go_on()
        self.expect(session.found, is_done)

    _counts = _gives_back

    def _skips(self, who: str, j: int, given: dict[str, str]) -> None:
        self._gives_back(who, j, given, is_done=False)

    _finds_changed = _skips

    def _waits(self, who: str, j: Any, given: dict[str, str]) -> None:
        if self.session(who).at:
            raise Differs("it goes on")

    def _dies(self, who: str, j: Any, given: dict[str, str]) -> None:
        self.session(who).die()

    def _claims(self, who: str, j: int, given: dict[str, str]) -> None:
        self.claim(self.session(who), self.node, j)

    def _locks(self, who: str, j: int, given: dict[str, str]) -> None:
        session = self.session(who)
        session.begin()
        session.do(lambda: Job.objects.select_for_update().get(pk=self.ids[j]))

    def _unlocks(self, who: str, j: int, given: dict[str, str]) -> None:
        self.session(who).end(commits=False)

    def compare(self, words: list[str]) -> None:
        for number, row in enumerate(Job.objects.filter(pk__in=self.ids).order_by("pk")):
            # A row that was lost twice waits for its time.
            state = State.READY if row.state == State.SCHEDULED else row.state
            found = [STATES.get(state, 9), row.lease, row.node_losses]
            if found != (said := [int(word) for word in words[4 * number + 1 : 4 * number + 4]]):
                raise Differs(f"the row of job {number} is {found}, and not {said}")
