"""The clock: makes jobs due, expires them, ends waiting jobs that are cancelled, and calls extensions."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from django.db import OperationalError, ProgrammingError

from jobs import extensions, store
from jobs.conf import conf
from jobs.conf.logs import logger
from jobs.lifecycle import transitions
from jobs.lifecycle.wakeups import notify, wakeup
from jobs.lifecycle.worker_state import worker_state
from jobs.maintenance import give_way
from jobs.store import databases
from jobs.store.base import Seen, Since

LONGEST_TICK = 2.0  #: The most seconds that each part of a tick takes; the rest is done at the next tick.

#: How many batches one statement makes due. Many jobs may be due in the same second, and the last must not wait long.
DUE_BATCHES = 10


def tick() -> dict[str, int]:
    """Do what is due, and wake a process if there is work without a notification. All workers do this concurrently."""
    done = {"due": 0, "expired": 0, "cancelled": 0}
    answers: dict[str, dict[str, Any]] = {}
    databases.everywhere(partial(_tick, done=done, answers=answers))
    for ticked in extensions.through("ticked"):
        ticked(answers)
    return done


def look(using: str, asked: Mapping[str, str], since: Since | None = None) -> Seen:
    """Look what there is to do in a database, and get the answers to what extensions ask."""
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
    asked = extensions.merged("looks")
    seen = extensions.instead(look)(using, asked)
    if len(seen.more) == len(asked):
        answers[using] = dict(zip(asked, seen.more, strict=True))
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
