"""Where in a queue a process claims next: behind the row that it got last, and from time to time from the beginning."""

from __future__ import annotations

import time
from typing import Any

from jobs import store
from jobs.lifecycle.claims import LOOK, RARELY, SLOW_LOOK, Claimer
from jobs.models import Job
from jobs.models.columns import POSITION
from jobs.store.base import Claim


class ShortClaimer(Claimer):
    """Claims for one process, each queue from where the last claim ended."""

    def __init__(self, app: Any = None) -> None:
        super().__init__(app)
        #: For each database and queue: the place of the row that was claimed last, and when to look from the start.
        self._after: dict[tuple[str, str], tuple[Any, ...]] = {}
        self._look_at: dict[tuple[str, str], float] = {}

    def in_order(self, using: str, claim: Claim) -> list[Job]:
        at, place = store.of(using), (using, claim.queue)
        if not at.claims_after:
            return super().in_order(using, claim)
        after = self._after.pop(place, None)
        rows: list[Job] = []
        if after and time.monotonic() < self._look_at.get(place, 0.0):
            rows = at.claim(claim._replace(after=after))
        if not rows:
            began = time.monotonic()
            rows = super().in_order(using, claim)
            took = time.monotonic() - began
            self._look_at[place] = time.monotonic() + (RARELY * took if took > SLOW_LOOK else LOOK)
        if rows:
            # A job that comes alone needs no place: nothing stands behind it, and one look says so.
            self._after[place] = () if after is None else POSITION(rows[-1])
        return rows
