"""The claim: a process takes the first jobs of a queue; and what the token of a claim tells later.

The statement is in ``jobs/store``. SKIP LOCKED decides its race: of several processes that look at the same row, one
gets it, and none waits.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from jobs import extensions, store
from jobs.models import Job
from jobs.store.base import Claim

#: How many rows a statement may ask for: only a few sizes, so that each is planned once.
SIZES = (1, 2, 5, 10, 20, 30, 50, 100, 200)
#: Seconds between two looks for what may have come meanwhile. One that takes longer than SLOW_LOOK seconds is repeated
#: after RARELY times its own length.
LOOK, SLOW_LOOK, RARELY = 1.0, 0.02, 50

#: A claimed row: the job, its lease and its token.
Claimed = tuple[uuid.UUID, int, int]


def renewed(token: int) -> int:
    """The token of a renewed row: the token of its claim, negated, so that :func:`begun` recognizes the row."""
    return -abs(token)


def size_of(limit: float) -> int:
    """The largest of the sizes that is not above the limit."""
    return max((size for size in SIZES if size <= limit), default=1)


def claimer(app: Any) -> Claimer:
    """What claims for one process."""
    return extensions.instead(Claimer)(app)


class Claimer:
    """Claims for one process, queue by queue."""

    def __init__(self, app: Any = None) -> None:
        self.app = app

    def claim(self, using: str, queue: str, node: uuid.UUID, limit: int, **more: Any) -> list[Job]:
        """Take up to ``limit`` jobs of the queue, with a fresh token; ``more`` as :class:`Claim` has it."""
        return self.take(using, Claim(queue, node, size_of(limit), new_token(), **more))

    def take(self, using: str, claim: Claim) -> list[Job]:
        """Move jobs of a queue to ``running``, with one token and the next lease each. Extensions change it.

        A node that was declared dead claims nothing. An expired row is not claimed, and no row of a paused queue.
        The answer is in the order of the queue; it is empty if other processes are about to get all there is. If the
        claim has an order of its own, and finds nothing by it, the order of the queue is used.
        """
        if claim.order is not None and (found := store.of(using).claim(claim)):
            return found
        return self.in_order(using, claim._replace(order=None))

    def in_order(self, using: str, claim: Claim) -> list[Job]:
        """Claim by the order of the queue. An extension may begin behind the first rows."""
        return store.of(using).claim(claim)

    def promising(self, using: str, queues: Sequence[str]) -> Sequence[str]:
        """Those of the queues in which a claim may find something."""
        return store.of(using).with_ready(queues)

    @property
    def patience(self) -> float:
        """Seconds until a claim may find a job that was not there before, and that no wake-up tells of."""
        return float("inf")

    def may_find_more(self, jobs: Sequence[Job]) -> bool:
        """Whether there is probably more, although a claim found only these."""
        return False

    def note_left(self, jobs: Iterable[Job]) -> None:
        """The jobs of a claim have ended, or wait again."""


def new_token() -> int:
    """63 bits: the fence of a claim, beside its lease."""
    return random.SystemRandom().getrandbits(63)


def renew(job: Job) -> bool:
    """Give a claimed row a token of its own, and its claim a synchronous commit; False: it was given back meanwhile.

    Race: the supervisor gives back rows behind a long body, by the claim's token. One of the two finds the row changed.
    """
    token = renewed(job.token or 0)
    if done := store.of(str(job._state.db)).renew(job, token):
        job.token = token
    return done


def begun(runs: Sequence[Claimed]) -> list[Claimed]:
    """The runs of dead processes that may have begun, as far as their rows tell. The other runs have not begun.

    A process runs a claim in its order, and finishes each row before it begins the next one. So the first row that is
    left may have been begun. If the claim is older than a second, the process renews a row before it begins it: then
    the renewed row is the one. The rows do not tell whether the process died just before it began that row, or went on
    after a finish that failed. Coroutines all begin at once: the claim itself gives them the token of a renewed row.

    Parameters:
        runs: all that is left of each claim, in the order of the queue.
    """
    first: dict[int, Claimed] = {}
    for run in runs:
        first.setdefault(run[2], run)
    return [run for run in runs if run[2] < 0 or (run is first[run[2]] and -run[2] not in first)]
