"""Who is dead. The players' clock is the model's, and nobody waits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from django.test import override_settings

from jobs.maintenance import rescue
from jobs.models import Node
from jobs.store import heartbeats
from jobs.store.databases import SideDatabase
from proof.player import Differs, Player

#: The seconds of the model: the judge's clock begins there, and the other node's is behind by so much.
BEGIN, AHEAD = 1000, 12


class Judge(Player):
    model = "judge"

    def play(self, steps: Any) -> None:
        self.now = 0
        clock = SimpleNamespace(monotonic=lambda: BEGIN + self.now)
        settings = override_settings(JOBS={"HEARTBEAT": 2, "DEAD_AFTER": 10})
        with settings, patch.object(rescue, "time", clock):
            super().play(steps)

    def reset(self) -> None:
        super().reset()
        self.side = SideDatabase(is_apart=False)
        self.side.execute("DELETE FROM jobs_heartbeat")
        self.a, self.j = (Node.objects.create(hostname="here", pid=number).pk for number in range(2))
        for node in (self.a, self.j):
            heartbeats.first(self.side, node)
        self._write_time(BEGIN)
        self.judge = rescue.Rescue(self.side, lambda: self.j)
        self.found: list[Any] = []

    def _write_time(self, at: float) -> None:
        """What the other node's clock says, for a judge that would believe it."""
        self.side.execute("UPDATE jobs_heartbeat SET at = %s WHERE node = %s", at, self.a.hex)

    def _beats(self, who: str, j: Any, given: dict[str, str]) -> None:
        self.expect(heartbeats.send(self.side, self.a if who == "a" else self.j), True)
        if who == "a":
            self._write_time(BEGIN - AHEAD + self.now)

    def _ticks(self, who: str, j: Any, given: dict[str, str]) -> None:
        self.now = int(given["now"])

    def _nothing(self, who: str, j: Any, given: dict[str, str]) -> None:
        """Of what happens to a machine, or to the database, the code sees nothing but the time."""

    _cannot_beat = _dies = _goes = _returns = _nothing

    def _look(self) -> bool:
        self.found = [node for node in self.judge._silent() if node == self.a]
        return bool(self.found)

    def _looks(self, who: str, j: Any, given: dict[str, str]) -> None:
        self.expect(self._look(), False)

    def _sees(self, who: str, j: Any, given: dict[str, str]) -> None:
        self.expect(self._look(), False)
        self.expect(self.judge._seen[self.a], (int(given["count"]), BEGIN + self.now))

    def _finds_silent(self, who: str, j: Any, given: dict[str, str]) -> None:
        self.expect(self._look(), True)

    def _buries(self, who: str, j: Any, given: dict[str, str]) -> None:
        self._decide(True)

    def _sees_a_beat(self, who: str, j: Any, given: dict[str, str]) -> None:
        self._decide(False)

    def _decide(self, is_dead: bool) -> None:
        with patch.object(self.judge, "_silent", lambda: self.found):
            self.judge.run_once()
        if Node.objects.filter(pk=self.a, dead_at__isnull=False).exists() != is_dead:
            raise Differs("the node is " + ("alive" if is_dead else "dead"))
