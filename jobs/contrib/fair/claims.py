"""The claim in a queue where keys take turns. Each process has a place of its own among the keys.

A turn is one job, or as many as the key's weight says; a process that claims several at once takes some of each key.
So nobody waits for more than one turn of each other key, and of each only as long as its jobs take.
"""

from __future__ import annotations

import random
import string
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from jobs.conf import celery_app
from jobs.contrib.fair import keys
from jobs.contrib.fair.keys import NO_KEY
from jobs.contrib.fair.order import Rotation
from jobs.lifecycle import claims
from jobs.lifecycle.claims import LOOK, RARELY, SLOW_LOOK
from jobs.models import CLAIMABLE, WAITING, Job, State
from jobs.models.columns import ORDER
from jobs.store import databases
from jobs.store.base import Claim

#: Seconds for which a queue that was not known to have keys is claimed as one, after a job with a key was met in it.
KEPT = 60.0
#: Among so many of the first jobs of a queue those without a key are looked for that were called before it had keys.
WINDOW = 200


class FairClaimer(claims.Claimer):
    """Claims for one process, and lets keys take turns. In a queue without any it is the :class:`claims.Claimer`."""

    def __init__(self, app: Any = None) -> None:
        super().__init__(app)
        self._app = app
        #: For each database and queue: the key at which the last claim ended, and how many more of it are its turn.
        self._turn_at: dict[tuple[str, str], tuple[str, int]] = {}
        #: For each database and queue: until when it has keys, because some were met; until when it has none, because
        #: none were; and when those without a key are looked for.
        self._fair_until: dict[tuple[str, str], float] = {}
        self._keyless_until: dict[tuple[str, str], float] = {}
        self._adopt_at: dict[tuple[str, str], float] = {}

    def may_find_more(self, jobs: Sequence[Any], asked: int) -> bool:
        # Each key gave its share, and others may have more.
        return super().may_find_more(jobs, asked) or len({job.fair_key for job in jobs}) > 1

    def take(self, using: str, claim: Claim) -> list[Job]:
        queue, now = claim.queue, time.monotonic()
        spot = (using, queue)
        is_keyless = now < self._keyless_until.get(spot, 0.0)
        is_known = queue in keys.queues(self._app or celery_app()) or now < self._fair_until.get(spot, 0.0)
        if is_keyless or not is_known:
            plain: list[Any] = super().take(using, claim)
            if any(job.fair_key for job in plain):
                self._fair_until[spot] = now + KEPT
            return plain
        # From the start on every process is somewhere else.
        key, left = self._turn_at.get(spot) or ("".join(random.choices(string.digits + string.ascii_letters, k=4)), 0)
        order = Rotation(queue, claim.limit, key, left, keys.weights(queue))
        rows: list[Any] = super().take(using, claim._replace(order=order))
        taken = Counter(job.fair_key for job in rows if job.fair_key)
        if taken:
            self._fair_until[spot] = now + KEPT
            self._advance(spot, order, taken)
            has_gone_round = self._turn_at[spot][0] <= key
            if has_gone_round and NO_KEY not in taken and now >= self._adopt_at.get(spot, 0.0):
                self._adopt_at[spot] = 0.0 if adopt(using, queue) else now + LOOK
        elif rows:
            self._keyless_until[spot] = now + LOOK
        elif (took := time.monotonic() - now) > SLOW_LOOK:
            # It stepped over many jobs of other tasks.
            self._keyless_until[spot] = now + RARELY * took
        return rows

    def _advance(self, spot: tuple[str, str], order: Rotation, taken: Counter[Any]) -> None:
        """The next claim goes on behind the last key of this one; or at it, if its turn was cut short."""
        # From the place on, and then from the beginning.
        wrapped = [key for key in taken if key < order.key or (key == order.key and not order.left)]
        last = max(wrapped or taken)
        most = order.left if last == order.key and order.left else order.weights.get(last, 1)
        is_cut = sum(taken.values()) >= order.size and taken[last] < most
        self._turn_at[spot] = last, most - taken[last] if is_cut else 0


def adopt(using: str, queue: str) -> int:
    """Let the first jobs that were called before their queue had keys share the turn of those without one."""
    rows = Job.objects.using(using)
    head = rows.filter(CLAIMABLE, queue=queue).order_by(*ORDER).values_list("pk", "fair_key")[:WINDOW]
    if not (ids := [pk for pk, key in head if key is None]):
        return 0

    def write() -> int:
        free = databases.free(rows.filter(pk__in=ids, state=State.READY)).values_list("pk", flat=True)
        return rows.filter(pk__in=list(free), state__in=WAITING).update(fair_key=NO_KEY)

    # Race: one of them is cancelled at this moment.
    return databases.again_if_moved(using, write)
