"""Many processes side by side, of which one after the other is killed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack

from tests.faults.producer import Producer
from tests.faults.worker import Worker
from tests.helpers.servers import wait_for

#: Jobs that each producer enqueues in a second.
PACE = 20


class Fleet:
    """Workers and producers. Who is killed is replaced at once.

    ``with Fleet(seed, workers=4, producers=3) as fleet: fleet.kill("supervisor")``
    """

    #: Of whom one may be killed.
    KINDS = ("child", "supervisor", "worker", "producer")

    def __init__(self, seed: int, *, workers: int, producers: int) -> None:
        self.random = random.Random(seed)
        self._sizes = {"worker": workers, "producer": producers}
        self._members: dict[str, list] = {kind: [] for kind in self._sizes}
        self._stack = ExitStack()
        #: How many of each kind were killed.
        self.killed: Counter[str] = Counter()

    def __enter__(self) -> Fleet:
        for kind, size in self._sizes.items():
            for _ in range(size):
                self._members[kind].append(self._start(kind))
        return self

    def __exit__(self, *exc) -> None:
        self._stack.__exit__(*exc)

    def kill(self, kind: str) -> str:
        """SIGKILL to one of a kind, whichever; returns who it was."""
        self.killed[kind] += 1
        if kind in ("child", "supervisor"):
            # Of a worker that is up: one that starts has neither.
            worker = self.random.choice([worker for worker in self._members["worker"] if " ready." in worker.text()])
            if kind == "supervisor":
                process = worker.supervisor
            else:
                process = self.random.choice(wait_for(lambda: worker.children, 10, "the worker has children"))
            process.kill()
            return f"{kind} {process.pid} of worker {worker.process.pid}"
        members = self._members[kind]
        victim = self.random.choice(members)
        victim.kill()
        members[members.index(victim)] = self._start(kind)
        return f"{kind} {victim.process.pid}"

    def end_producers(self) -> None:
        for producer in self._members["producer"]:
            producer.kill()

    def _start(self, kind: str) -> Worker | Producer:
        start: dict[str, Callable[[], Worker | Producer]] = {
            "worker": lambda: Worker(wait=False),
            "producer": lambda: Producer(10**6, pace=PACE),
        }
        return self._stack.enter_context(start[kind]())
