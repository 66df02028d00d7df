"""Two runs at once. Each waits before every statement and effect until it may go on."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count, product

from jobs.contrib.copies.store import PostgresCopy
from jobs.contrib.crashtest.child import PATIENCE, Broken, Child, Children, run_all
from jobs.contrib.crashtest.recorder import Operation

#: Which of the two runs goes on, and for how many steps; None: to its end.
Step = tuple[int, int | None]

#: Seconds without a sign after which a run counts as blocked, if the database cannot tell; seconds between two looks.
SILENT, TICK = 0.15, 0.004

NAMES = ("jobs-crashtest-first", "jobs-crashtest-second")


def play(children: Children, steps: Sequence[Step]) -> list[list[Operation]]:
    """Run both jobs in this order of their steps, then each to its end; return their operations."""
    runs: list[Child] = []
    try:
        for name in NAMES:
            runs.append(children.start(partial(run_all, 1), name, is_stepwise=True))
            # The first run claims the first job.
            if not runs[-1].look(PATIENCE):
                raise Broken("two runs at once did not begin")
        for who, many in (*steps, (0, None), (1, None)):
            _advance(children, runs, who, many)
    finally:
        for run in runs:
            run.end()
    return [run.operations for run in runs]


def _advance(children: Children, runs: Sequence[Child], who: int, many: int | None) -> None:
    """Let one run go on. If it waits for the other run's transaction, the other run has to go on first."""
    run, other = runs[who], runs[1 - who]
    for _ in range(many) if many is not None else count():
        if run.is_over:
            return
        if run.is_waiting:
            run.go()
        since = time.monotonic()
        while not run.look(TICK):
            if time.monotonic() - since > PATIENCE:
                raise Broken("two runs at once did not end")
            if not _is_blocked(children, NAMES[who], since):
                continue
            if many is not None:
                return
            if other.look(0) and not other.is_over:
                # The other run holds the lock.
                other.go()
                since = time.monotonic()


def _is_blocked(children: Children, name: str, since: float) -> bool:
    known = [copy for copy in children.copies if isinstance(copy, PostgresCopy)]
    # A project may set the names of its connections: then the database cannot tell.
    if time.monotonic() - since > (10 * SILENT if known else SILENT):
        return True
    return any(copy.has_waiting(name) for copy in known)


def schedules(first: int, second: int) -> Iterator[list[Step]]:
    """All orders of steps to try: one run interrupts the other once, at each step; then they interrupt each other.

    Parameters:
        first, second: how many steps each run has.
    """
    yield from ([(0, step), (1, None)] for step in range(1, first + 1))
    yield from ([(1, step), (0, None)] for step in range(1, second + 1))
    pairs = sorted(product(range(1, first + 1), range(1, second + 1)), key=sum)
    yield from ([(0, one), (1, other), (0, None)] for one, other in pairs)
