"""What happens to the cluster, as the seed says: who dies, stops, is cut off, and when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psycopg

from jobs.conf import syncpoints
from jobs.store.sessions import Session
from simulation.backend.base import server
from simulation.world import world

if TYPE_CHECKING:
    from simulation.cluster import Cluster

#: Each kind, and how often it happens to a node in an hour; what happens to the database does so to all of them.
RATES = {
    "kill_child": 6.0,
    "kill_supervisor": 2.0,
    "kill_main": 1.0,
    "power": 1.0,
    "pause_child": 3.0,
    "pause_supervisor": 2.0,
    "pause_node": 1.0,
    "cut": 2.0,
    "jump": 2.0,
    "deploy": 1.0,
    "lost_answer": 4.0,
    "at_point": 6.0,
    "failover": 2.0,
}

#: Seconds of a pause or a cut: below and above the time after which a node is dead.
SHORT, LONG = 1.0, 45.0

#: Seconds for which the database is away.
OUTAGE = (2.0, 20.0)


class Faults:
    """
    Parameters:
        times: how many times as often as :data:`RATES` says.
    """

    def __init__(self, cluster: Cluster, kinds: tuple[str, ...], times: float) -> None:
        self._cluster, self._kinds, self._often = cluster, kinds, times
        self.done: Counter[str] = Counter()
        self.is_over = False
        #: The actors at whose next sync point something happens, and those whose next answer gets lost.
        self._at_point = 0
        self._lost_answers = 0

    def begin(self) -> None:
        if "at_point" in self._kinds:
            self._reach.__func__.point = None
            syncpoints.arm(self._reach)
        if "lost_answer" in self._kinds:
            send = Session.send

            def send_and_lose(session: Any, sql: str) -> Any:
                answer = send(session, sql)
                if self._lost_answers and "COMMIT" in sql and world.actor is not None:
                    self._lost_answers -= 1
                    self.done["lost_answer"] += 1
                    session.cursor.connection.close()
                    raise psycopg.OperationalError("server closed the connection unexpectedly")
                return answer

            Session.send = send_and_lose
        for kind in self._kinds:
            self._plan(kind)

    def end(self) -> None:
        """Nothing more happens; what was cut off comes back."""
        self.is_over = True
        self._at_point = self._lost_answers = 0
        for node in self._cluster.nodes:
            node.is_cut = False

    def _plan(self, kind: str) -> None:
        times = self._often * RATES[kind] * (1 if kind == "failover" else self._cluster.size)
        world.at(world.now + world.random.expovariate(times / 3600), lambda: self._happen(kind))

    def _happen(self, kind: str) -> None:
        if self.is_over:
            return
        self._plan(kind)
        if kind == "failover":
            if server.is_up:
                self.done[kind] += 1
                self._cluster.fail_over(world.random.uniform(*OUTAGE))
            return
        nodes = [node for node in self._cluster.nodes if node.is_up and not node.is_cut]
        if not nodes:
            return
        node, seconds = world.random.choice(nodes), world.random.uniform(SHORT, LONG)
        does: dict[str, Callable[[], Any]] = {
            "kill_child": lambda: self.kill(node, world.random.choice(node.children)),
            "kill_supervisor": lambda: node.supervisor and node.supervisor.end(),
            "kill_main": lambda: self.kill(node, *node.children, node.main),
            "power": lambda: self._lose_power(node),
            "pause_child": lambda: world.random.choice(node.children).pause(seconds),
            "pause_supervisor": lambda: node.supervisor and node.supervisor.pause(seconds),
            "pause_node": lambda: [process.pause(seconds) for process in node.everything()],
            "cut": lambda: self._cut(node, seconds),
            "jump": lambda: setattr(node, "clock_ahead", world.random.uniform(-3600, 3600)),
            "deploy": node.stop,
            "lost_answer": lambda: setattr(self, "_lost_answers", self._lost_answers + 1),
            "at_point": lambda: setattr(self, "_at_point", self._at_point + 1),
        }
        if kind not in ("lost_answer", "at_point"):
            self.done[kind] += 1
        does[kind]()

    def kill(self, node: Any, *processes: Any) -> None:
        self._cluster.note_deaths(node, processes)
        for process in processes:
            process.end()

    def _lose_power(self, node: Any) -> None:
        self._cluster.note_deaths(node, node.children)
        node.lose_power()

    def _cut(self, node: Any, seconds: float) -> None:
        node.is_cut = True
        world.at(world.now + seconds, lambda: setattr(node, "is_cut", False))

    def _reach(self, point: str) -> None:
        """A sync point: now and then a process dies there, or stands still."""
        actor = world.actor
        if not self._at_point or actor is None or actor.process.name != "child" or world.random.random() < 0.8:
            return
        self._at_point -= 1
        if world.random.random() < 0.5:
            self.done[f"killed at {point}"] += 1
            world.at(world.now, lambda: self.kill(actor.process.node, actor.process))
        else:
            self.done[f"paused at {point}"] += 1
            actor.process.pause(world.random.uniform(SHORT, LONG))
        # It is not here any more when others have had their turn.
        world.wait(0.0)
