"""The clock: makes jobs due, expires them, ends waiting jobs that are cancelled, and calls extensions."""

import datetime
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from django.db import OperationalError, ProgrammingError

from jobs import extensions, store
from jobs.conf import conf
from jobs.conf.logs import logger
from jobs.lifecycle import transitions
from jobs.lifecycle.wakeups import notify, wakeup
from jobs.lifecycle.worker_state import worker_state
from jobs.maintenance import give_way
from jobs.store import databases
from jobs.store.base import COMMITTED_WITHIN, Seen, Since

T = TypeVar("T")

LONGEST_TICK = 2.0  #: The most seconds that each part of a tick takes; the rest is done at the next tick.

#: A transaction that stays open for long keeps PostgreSQL from vacuuming, and a look from the start steps over the dead
#: entries of all jobs that waited since. If two such looks in a row take longer than SLOW_LOOK seconds, the next comes
#: after RARELY times their length, at most after LONGEST_LOOK seconds. The looks in between begin where the last one
#: ended: they see what comes due after that place; a job committed late before it waits up to LONGEST_LOOK seconds.
SLOW_LOOK, RARELY, LONGEST_LOOK = 0.02, 50, 30.0

#: How many batches one statement makes due. Many jobs may be due in the same second, and the last must not wait long.
DUE_BATCHES = 10


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


def tick() -> dict[str, int]:
    """Do what is due, and wake a process if there is work without a notification. All workers do this concurrently."""
    done = {"due": 0, "expired": 0, "cancelled": 0}
    answers: dict[str, dict[str, Any]] = {}
    databases.everywhere(partial(_tick, done=done, answers=answers))
    for ticked in extensions.through("ticked"):
        ticked(answers)
    return done


def _look(using: str, asked: Mapping[str, str], since: Since | None) -> Seen:
    at = store.of(using)
    try:
        return at.look(worker_state.queues, asked.values(), since)
    except (ProgrammingError, OperationalError) as exc:
        # A table of an extension may not be migrated here. That must not keep the core's jobs waiting.
        seen = at.look(worker_state.queues, (), since)
        if using not in _unasked:
            _unasked.add(using)
            extra = worker_state.about("look_failed")
            logger.warning("the clock leaves out what extensions ask of %r: %s", using, exc, extra=extra)
        return seen


#: The databases for which it was logged already that extensions cannot query them.
_unasked: set[str] = set()


def _tick(using: str, done: dict[str, int], answers: dict[str, dict[str, Any]]) -> None:
    at, asked = store.of(using), extensions.merged("looks")
    seen = looked(
        using,
        "all",
        lambda place: _look(using, asked, Since(place.due, place.late) if place else None),
    )
    if len(seen.more) == len(asked):
        answers[using] = dict(zip(asked, seen.more, strict=True))
    if at.claims_after:
        _positions[using, "all"].move(seen.now, seen.due, seen.late)
    if seen.is_ready:
        wakeup.send()
    if seen.due is not None:
        done["due"] += until_done(partial(_make_due, using, seen.due))
    if seen.late is not None:
        done["expired"] += until_done(partial(transitions.expire, using, conf().BATCH, since=seen.late))
    if seen.is_asked:
        done["cancelled"] += transitions.sweep_cancellations(using, conf().BATCH)


def _make_due(using: str, since: Any) -> int:
    queues = transitions.make_due(using, DUE_BATCHES * conf().BATCH, since=since)
    if len(queues) == DUE_BATCHES * conf().BATCH:
        # There are more. A job that came due just now must not wait behind them.
        queues += transitions.make_due(using, conf().BATCH, "-run_at", since=since)
    return told(using, queues)


def told(using: str, queues: list[str]) -> int:
    """Notify after each batch: the first jobs of many must not wait for the last."""
    if queues:
        notify(using, queues)
        wakeup.send()
    return len(queues)


def until_done(step: Callable[[], int]) -> int:
    done = 0
    deadline = time.monotonic() + LONGEST_TICK
    while (count := step()) and time.monotonic() < deadline:
        done += count
        extensions.instead(give_way)()
    return done + count


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
