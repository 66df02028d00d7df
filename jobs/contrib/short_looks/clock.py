"""Where the clock, and the listener, begin their looks at what is due and ready."""

from __future__ import annotations

import datetime
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from jobs import store
from jobs.lifecycle.claims import RARELY, SLOW_LOOK
from jobs.maintenance import clock
from jobs.store.base import COMMITTED_WITHIN, Seen, Since

T = TypeVar("T")

#: If two looks from the start in a row take longer than SLOW_LOOK seconds, the next comes after RARELY times their
#: length, at most after so many seconds. The looks in between see what comes due after the place where they begin; a
#: job committed late before it waits for the next look from the start.
LONGEST_LOOK = 30.0


@dataclass
class _Position:
    """Where the short looks at a database begin: everything before that place was done at the last look."""

    #: On the monotonic clock: until then looks begin at this place; the next one begins at the start again.
    until: float = 0.0
    #: Seconds that the last look from the start took.
    took: float = 0.0
    due: datetime.datetime | None = None
    late: datetime.datetime | None = None

    def move(self, now: datetime.datetime, due: Any, late: Any) -> None:
        """Move to the first job that is due, or expired: it may be locked, and so stay there."""
        end = now - datetime.timedelta(seconds=COMMITTED_WITHIN)
        self.due, self.late = min(due or end, end), min(late or end, end)


#: For each database and each kind of look.
_positions: dict[tuple[str, str], _Position] = defaultdict(_Position)


def look(using: str, asked: Mapping[str, str]) -> Seen:
    """What the clock sees in a database."""

    def look_from(place: _Position | None) -> Seen:
        return clock.look(using, asked, Since(place.due, place.late) if place else None)

    seen = looked(using, "all", look_from)
    if store.of(using).claims_after:
        _positions[using, "all"].move(seen.now, seen.due, seen.late)
    return seen


def has_ready(using: str, queues: list[str]) -> bool:
    """Whether a job waits in one of the queues, or was added there a moment ago."""
    at = store.of(using)
    return looked(using, "ready", lambda place: at.has_ready(queues, is_short=place is not None))


def looked(using: str, kind: str, look: Callable[[_Position | None], T]) -> T:
    """Look at a database: from the start, or (``look`` gets a place) from where the last such look ended."""
    place, begin = _positions[using, kind], time.monotonic()
    is_short = begin < place.until
    found = look(place if is_short else None)
    if store.of(using).claims_after and not is_short:
        end = time.monotonic()
        # The shorter of two: a single look may have been slow for any reason.
        cost, place.took = min(place.took, end - begin), end - begin
        if cost > SLOW_LOOK:
            place.until = end + min(RARELY * cost, LONGEST_LOOK)
    return found
