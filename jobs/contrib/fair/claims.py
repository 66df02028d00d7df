"""The claim in a queue where keys take turns. Each process remembers its own place among the keys.

A turn is one job, or as many as the key's weight says; a process that claims several at once takes some of each key.
So a key waits for one turn of each other key at most, and for each turn only as long as its jobs take.
"""

from __future__ import annotations

import random
import string
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from jobs import store
from jobs.conf import celery_app
from jobs.contrib.fair import keys
from jobs.contrib.fair.keys import NO_KEY
from jobs.contrib.fair.order import Rotation
from jobs.lifecycle import claims
from jobs.lifecycle.claims import LOOK, RARELY, SLOW_LOOK
from jobs.models import CLAIMABLE, WAITING, Job, State
from jobs.models.columns import ORDER, POSITION
from jobs.store import databases
from jobs.store.base import Claim

#: Seconds for which a queue counts as one with keys after a job with a key was met in it.
KEPT = 60.0
#: How many jobs without a key, called before their queue had keys, get a turn at once.
WINDOW = 200
#: If a look finds none of them, the next one comes after this multiple of the usual pause: each process looks.
SELDOM = 10
#: For how many keys the place where the last claim ended is kept.
PLACES = 20
#: Seconds. A claim of one job from the start that takes no longer (of 50: twice that) is cheaper than one with places.
FAST_LOOK = 0.005


class FairClaimer(claims.Claimer):
    """Claims for one process, and lets keys take turns. In a queue without keys it works as :class:`claims.Claimer`."""

    def __init__(self, app: Any = None) -> None:
        super().__init__(app)
        #: For each database and queue: the key at which the last claim ended, and how many jobs are left of its turn.
        self._turn_at: dict[tuple[str, str], tuple[str, int]] = {}
        #: For each database and queue: until when it counts as having keys, because some were met; until when as having
        #: none, because none were met; and when to look for jobs without a key.
        self._fair_until: dict[tuple[str, str], float] = {}
        self._keyless_until: dict[tuple[str, str], float] = {}
        self._adopt_at: dict[tuple[str, str], float] = {}
        #: For each database and queue, for some keys: where the last claim ended, and until when claims begin there.
        self._places: dict[tuple[str, str], dict[str, tuple[float, tuple[Any, ...]]]] = {}
        #: The tasks that the last claim left out, and those to which it was limited.
        self._without: dict[tuple[str, str], Any] = {}

    def may_find_more(self, jobs: Sequence[Any]) -> bool:
        # Each key gave its share, and some keys may have more jobs.
        return len({job.fair_key for job in jobs}) > 1 or super().may_find_more(jobs)

    def take(self, using: str, claim: Claim) -> list[Job]:
        queue, now = claim.queue, time.monotonic()
        spot = (using, queue)
        is_keyless = now < self._keyless_until.get(spot, 0.0)
        is_known = queue in keys.queues(self.app or celery_app()) or now < self._fair_until.get(spot, 0.0)
        if is_keyless or not is_known:
            plain: list[Any] = super().take(using, claim)
            if any(job.fair_key for job in plain):
                self._fair_until[spot] = now + KEPT
            return plain
        # Each process starts at another, random place.
        key, left = self._turn_at.get(spot) or ("".join(random.choices(string.digits + string.ascii_letters, k=4)), 0)
        # Jobs of tasks that the last claim left out may be before the places: forget these.
        if self._without.setdefault(spot, others := (claim.without, claim.only)) != others:
            self._without[spot] = others
            self._places.pop(spot, None)
        places = {key: place for key, (until, place) in self._places.get(spot, {}).items() if now < until}
        order = Rotation(queue, claim.limit, key, left, keys.weights(queue), places)
        rows: list[Any] = super().take(using, claim._replace(order=order))
        taken = Counter(job.fair_key for job in rows if job.fair_key)
        if taken:
            self._fair_until[spot] = now + KEPT
            self._advance(spot, order, taken)
            if store.of(using).claims_after:
                self._note_places(spot, order, rows, time.monotonic() - now)
            has_gone_round = self._turn_at[spot][0] <= key
            if has_gone_round and NO_KEY not in taken and now >= self._adopt_at.get(spot, 0.0):
                began = time.monotonic()
                found = adopt(using, queue)
                self._adopt_at[spot] = 0.0 if found else began + SELDOM * pause_after(time.monotonic() - began)
        elif rows:
            self._keyless_until[spot] = now + LOOK
        elif (took := time.monotonic() - now) > SLOW_LOOK:
            # The claim stepped over many jobs of other tasks.
            self._keyless_until[spot] = now + RARELY * took
        return rows

    def _advance(self, spot: tuple[str, str], order: Rotation, taken: Counter[Any]) -> None:
        """The next claim goes on behind the last key of this one; or at that key, if its turn was cut short."""
        # The claim went from its place to the end, and then on from the beginning.
        wrapped = [key for key in taken if key < order.key or (key == order.key and not order.left)]
        last = max(wrapped or taken)
        most = order.left if last == order.key and order.left else order.weights.get(last, 1)
        is_cut = sum(taken.values()) >= order.size and taken[last] < most
        self._turn_at[spot] = last, most - taken[last] if is_cut else 0

    def _note_places(self, spot: tuple[str, str], order: Rotation, rows: Sequence[Any], took: float) -> None:
        """Note where this claim ended in each key. A key that it read from the start is read so again later.

        A key without jobs keeps its place: claims that step over it then do not read its old index entries.
        """
        places, last = self._places.setdefault(spot, {}), self._turn_at[spot][0]
        is_slow = took > FAST_LOOK * (1 + len(rows) / 50)
        until = time.monotonic() + pause_after(took) if is_slow else 0.0
        ended = {job.fair_key: POSITION(job) for job in rows if job.fair_key}
        for key, (_, place) in places.items():
            # The claim was within a turn that was cut short, and looked at no other key.
            is_same = bool(order.left) and last == order.key
            is_before, is_behind = key <= last, key > order.key
            is_passed = is_before and is_behind if order.key < last else is_before or is_behind
            if is_passed and not is_same and key not in order.places:
                places[key] = until, place
        for key, place in ended.items():
            places[key] = places[key][0] if key in order.places else until, place
        while len(places) > PLACES:
            places.pop(random.choice([*places]))


def pause_after(took: float) -> float:
    """How many seconds after a look that took this long the next one comes."""
    return RARELY * took if took > SLOW_LOOK else LOOK


def adopt(using: str, queue: str) -> int:
    """Give the first jobs that were called before their queue had keys the shared turn of jobs without a key.

    No index holds only these jobs: if there are none, all waiting jobs of the queue are read.
    """
    rows = Job.objects.using(using)
    without = rows.filter(CLAIMABLE, queue=queue, fair_key=None).order_by(*ORDER)
    if not (ids := list(without.values_list("pk", flat=True)[:WINDOW])):
        return 0

    def write() -> int:
        free = databases.free(rows.filter(pk__in=ids, state=State.READY)).values_list("pk", flat=True)
        return rows.filter(pk__in=list(free), state__in=WAITING).update(fair_key=NO_KEY)

    # Race: one of them may be cancelled at this moment.
    return databases.again_if_moved(using, write)
