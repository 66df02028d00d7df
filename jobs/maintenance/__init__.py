"""Background upkeep of the jobs: the clock, and rescue.

Rescue has ``run_once()``, and the clock has ``tick()``: each returns what it did. Any number of them may run at once,
in every worker and by a command.
"""

import time
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext


def turn() -> AbstractContextManager[None]:
    """A step of one of the supervisor's threads that uses databases. An extension lets them share connections."""
    return nullcontext()


def give_way() -> None:
    """Called between two parts of a long step, outside of a transaction. An extension lets other threads go on."""


#: Seconds: steps shorter than this are cheap, and are never delayed.
QUICK = 0.02

#: Seconds: no step is put off for longer. It may have waited for a lock, or for a server that was away.
LONGEST = 30.0


class Seldom:
    """Takes steps that mostly find nothing: the longer a step takes, the less often it is taken.

    While a transaction stays open for long, nothing is vacuumed, and a look reads all the dead rows.

    Parameters:
        times: the pause after a step that found nothing, in multiples of its length.
    """

    def __init__(self, times: int) -> None:
        self._times = times
        self._next: dict[Hashable, float] = {}

    def take(self, name: Hashable, step: Callable[[], int]) -> int:
        """Take the step, if it is time for it, and return what it found; else 0."""
        begin, found = time.monotonic(), 0
        if begin < self._next.get(name, 0.0):
            return 0
        try:
            found = step()
        finally:
            end = time.monotonic()
            took = end - begin
            # If it found something, there may be more.
            self._next[name] = end if found or took < QUICK else end + min(self._times * took, LONGEST)
        return found

    def clear(self) -> None:
        """Make every step due now."""
        self._next.clear()
