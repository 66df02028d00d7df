"""What time brings: jobs come due, expire, or were asked to end while they waited; batches end."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from django.db import connections

from jobs.calling import batches
from jobs.conf import conf
from jobs.database import databases
from jobs.lifecycle import limited_claims, order, transitions
from jobs.lifecycle.board import board
from jobs.lifecycle.ring import bell, ring, told

LONGEST_TICK = 2.0  #: Seconds that each part of a tick takes at the most; the rest is done at the next tick.

#: The pause after a look for lines that stand still, in multiples of its length.
SELDOM = 20

#: How many batches come due in one statement. Many jobs may be due at the same second, and the last must not wait long.
DUE_BATCHES = 10

#: What there is to do, in one statement: mostly nothing. "ORDER BY ... LIMIT 1" makes PostgreSQL read by the index: for
#: EXISTS, which drops the order, it reads the table where it expects many rows.
_LOOK = """
SELECT (SELECT 1 FROM jobs_job WHERE state = 'scheduled' AND run_at <= {now} ORDER BY run_at LIMIT 1) IS NOT NULL,
       (SELECT 1 FROM jobs_job
        WHERE state IN ('scheduled', 'ready') AND expires_at IS NOT NULL AND expires_at <= {now}
        ORDER BY expires_at LIMIT 1) IS NOT NULL,
       EXISTS (SELECT 1 FROM jobs_cancellation),
       EXISTS (SELECT 1 FROM jobs_batch WHERE ended_at IS NULL),
       EXISTS (SELECT 1 FROM jobs_limit),
       EXISTS (SELECT 1 FROM jobs_gate WHERE look_at IS NOT NULL),
       (SELECT 1 FROM jobs_gate WHERE look_at <= {epoch} ORDER BY look_at LIMIT 1) IS NOT NULL
       OR (SELECT 1 FROM jobs_gate WHERE look_at > {epoch} + 61 ORDER BY look_at DESC LIMIT 1) IS NOT NULL,
       EXISTS (SELECT 1 FROM jobs_job WHERE {behind}),
       EXISTS (SELECT 1 FROM jobs_event WHERE relayed_at IS NULL AND received_at IS NULL),
       {ready}
"""

#: Whether a job waits in a queue, read by the index that the claim uses.
_READY = """(
    SELECT 1 FROM jobs_job WHERE state = 'ready' AND held IS NULL AND queue = %s
    AND NOT EXISTS (SELECT 1 FROM jobs_pause WHERE queue = %s)
    ORDER BY rank, run_at, id LIMIT 1
) IS NOT NULL"""


def tick() -> dict[str, int]:
    """Do what is due, and wake a process if there is work that no ring told of. All workers do it side by side."""
    done = {"due": 0, "expired": 0, "cancelled": 0, "batches": 0}
    held: list[bool] = []
    databases.everywhere(partial(_tick, done=done, held=held))
    board.holds = any(held)
    return done


def _tick(using: str, done: dict[str, int], held: list[bool]) -> None:
    found = _look(using, _LOOK, board.queues)
    is_due, is_late, is_asked, is_open, is_limited, holds, may_open, is_behind, is_told, is_ready = found
    held.append(holds)
    if is_ready or may_open:
        bell.ring()
    if is_told:
        told.set()
    if is_due:
        done["due"] += _until_done(partial(_make_due, using))
    if is_late:
        done["expired"] += _until_done(partial(transitions.expire, using, conf().BATCH))
    if is_asked:
        done["cancelled"] += transitions.sweep_cancellations(using, conf().BATCH)
    if is_open:
        done["batches"] += batches.close_ended(using, conf().BATCH)
    if using == databases.home() and (is_limited or board.limits):
        limited_claims.publish()
    if is_behind:
        _let_in_stuck(using)


#: For each database when to look next for lines that stand still. A look takes a step for each key that waits.
_look_at: dict[str, float] = {}


def _let_in_stuck(using: str) -> None:
    """Last of a tick, and seldom where it takes long: an error or a wait here keeps nothing else from its time."""
    begin = time.monotonic()
    if begin >= _look_at.get(using, 0.0):
        found = 0
        try:
            found = order.let_in_stuck(using)
        finally:
            end = time.monotonic()
            # Where it found some there may be more.
            _look_at[using] = end if found else end + SELDOM * (end - begin)


def _make_due(using: str) -> int:
    queues = transitions.make_due(using, DUE_BATCHES * conf().BATCH)
    if len(queues) == DUE_BATCHES * conf().BATCH:
        # There are more. What comes due at this moment must not wait behind them.
        queues += transitions.make_due(using, conf().BATCH, "-run_at")
    if queues:
        # After each batch: the first of many must not wait for the last.
        ring(using, set(queues))
        bell.ring()
    return len(queues)


def _until_done(step: Callable[[], int]) -> int:
    done = 0
    deadline = time.monotonic() + LONGEST_TICK
    while (count := step()) and time.monotonic() < deadline:
        done += count
    return done + count


def has_ready(using: str, queues: list[str]) -> bool:
    """Whether a job waits in one of the queues."""
    return bool(queues) and bool(_look(using, "SELECT {ready}", queues)[0])


def _look(using: str, sql: str, queues: list[str]) -> tuple[Any, ...]:
    vendor = connections[using].vendor
    # CURRENT_TIMESTAMP of SQLite is that of a whole second.
    now = "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')" if vendor == "sqlite" else "CURRENT_TIMESTAMP"
    ready = " OR ".join([_READY] * len(queues)) or "1 = 0"
    sql = sql.format(now=now, epoch=databases.EPOCH_NOW[vendor], ready=ready, behind=order.WAITS)
    [found] = databases.ask(using, sql, *(name for queue in queues for name in (queue, queue)))
    return tuple(found)
