"""Two runs at once, each of which waits before every statement and effect until it is let on."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count, product
from typing import Any

from jobs.testing import child, events
from jobs.testing.child import Broken, Children
from jobs.testing.events import Event

#: Which of the two goes on, and by how many steps; None: to its end.
Step = tuple[int, int | None]

#: Seconds without a sign after which a run is taken for blocked, where the database does not say so; between two looks.
SILENT, TICK = 0.15, 0.004

NAMES = ("first", "second")


class _Run:
    """One of the two, as the scheduler sees it."""

    def __init__(self, children: Children, name: str, ours: socket.socket, pid: int) -> None:
        self._children, self.name, self._socket, self.pid = children, name, ours, pid
        self.is_waiting = self.is_done = False

    def look(self, timeout: float) -> bool:
        """Whether it stands still, or has ended, after so many seconds at the most."""
        if not self.is_waiting and not self.is_done and select.select([self._socket], [], [], timeout)[0]:
            said = b""
            with suppress(ConnectionError):
                said = self._socket.recv(1)
            if said:
                self.is_waiting = True
            else:
                self.is_done = True
                self._children.wait(self.pid, self.name)
        return self.is_waiting or self.is_done

    def go(self) -> None:
        self.is_waiting = False
        self._socket.send(b".")

    def is_blocked(self, since: float) -> bool:
        known = [copy for copy in self._children.copies if copy.knows_waits]
        # A project may have a name of its own for its connections.
        if time.monotonic() - since > (10 * SILENT if known else SILENT):
            return True
        return any(copy.waits(child.application(self.name)) for copy in known)

    def end(self) -> None:
        if not self.is_done:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self._socket.close()


def play(children: Children, steps: Sequence[Step]) -> list[list[Event]]:
    """Run the two jobs that wait, in this order of their steps; after these each to its end. Returns their events."""
    runs: list[_Run] = []
    try:
        for name in NAMES:
            runs.append(_start(children, name))
            # The first one claims the first job.
            _until(lambda: runs[-1].look(TICK))
        for who, many in (*steps, (0, None), (1, None)):
            _advance(runs, who, many)
    finally:
        for run in runs:
            run.end()
    return [events.read(children.log(name)) for name in NAMES]


def _start(children: Children, name: str) -> _Run:
    ours, theirs = socket.socketpair()

    def stop(event: Any) -> None:
        theirs.send(b".")
        if not theirs.recv(1):
            os._exit(1)

    def work() -> None:
        ours.close()
        recorder = children.recorder(name, before=stop, after=lambda number: None if number else stop(number))
        recorder.install()
        child.run_one()

    pid = children.start(work, name)
    theirs.close()
    return _Run(children, name, ours, pid)


def _advance(runs: list[_Run], who: int, many: int | None) -> None:
    """Let one of them on. One that waits for the other's transaction stands there until that one has gone on."""
    run, other = runs[who], runs[1 - who]
    for _ in range(many) if many is not None else count():
        if run.is_done:
            return
        if run.is_waiting:
            run.go()
        since = time.monotonic()
        while not run.look(TICK):
            if time.monotonic() - since > child.PATIENCE:
                raise Broken("two runs at once did not end")
            if not run.is_blocked(since):
                continue
            if many is not None:
                return
            if other.look(0) and not other.is_done:
                # It holds what is waited for.
                other.go()
                since = time.monotonic()


def _until(condition: Any) -> None:
    deadline = time.monotonic() + child.PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise Broken("two runs at once did not begin")


def schedules(first: int, second: int) -> Iterator[list[Step]]:
    """Where the one is interrupted by the other: once, at each step; then also the other one at each of its steps.

    Parameters:
        first, second: how many steps they have.
    """
    yield from ([(0, step), (1, None)] for step in range(1, first + 1))
    yield from ([(1, step), (0, None)] for step in range(1, second + 1))
    pairs = sorted(product(range(1, first + 1), range(1, second + 1)), key=sum)
    yield from ([(0, one), (1, other), (0, None)] for one, other in pairs)
