"""What picks up whatever fell: the clock, rescue, prune, and the sessions of dead runs (``zombies.py``).

Rescue and prune have a ``run_once() -> dict[str, int]``, the clock a ``tick()``, which says what it did. Any number of
them may run side by side, beside every worker and as ``manage.py jobs rescue|prune``.
"""

import time
import uuid
from collections.abc import Callable, Hashable

from jobs.models import Node


def is_eldest(node: Callable[[], uuid.UUID] | None, using: str) -> bool:
    """Whether the node is the oldest that lives: it does what one does for all. None: somebody wants it done here."""
    if node is None:
        return True
    living = Node.objects.using(using).filter(dead_at=None).order_by("started_at", "pk")
    return bool(living.values_list("pk", flat=True).first() == node())


#: Seconds: shorter steps cost too little to be taken seldom.
QUICK = 0.02


class Seldom:
    """Takes steps that mostly find nothing the more seldom, the longer they take.

    Beside a transaction that stays open for long nothing is vacuumed, and a look steps over all that is over.

    Parameters:
        times: the pause after a step that found nothing, in multiples of its length.
    """

    def __init__(self, times: int) -> None:
        self._times = times
        self._next: dict[Hashable, float] = {}

    def take(self, name: Hashable, step: Callable[[], int]) -> int:
        """What the step found; 0 if it is not its turn."""
        begin, found = time.monotonic(), 0
        if begin < self._next.get(name, 0.0):
            return 0
        try:
            found = step()
        finally:
            end = time.monotonic()
            took = end - begin
            # Where it found some there may be more.
            self._next[name] = end if found or took < QUICK else end + self._times * took
        return found

    def clear(self) -> None:
        """Take all of them at once."""
        self._next.clear()
