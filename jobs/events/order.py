"""Jobs of one ``order_key`` run one after the other: each waits until the one before it has ended.

A job that waits behind others has a position (``order_position``, the smallest is first) and a ``run_at`` that never
comes. Its release removes both. A job is released if no other job of its key runs, is to run or is to be retried. The
process that ends a job releases the next one. If that process dies first, the next tick of any worker releases it.
"""

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from django.db import Error, transaction
from django.db.models import QuerySet

from jobs.events import store
from jobs.events.models import EVENT_HEADER, Relay
from jobs.lifecycle import wakeups
from jobs.lifecycle.transitions import NEVER
from jobs.maintenance import Seldom
from jobs.models import LIVE, Job, State
from jobs.models.values import named
from jobs.store import of


def release(using: str, keys: Iterable[str]) -> int:
    """Release the first job of each key that has no other live job; returns how many were released.

    Race: two callers may both see no live job, and each releases a different job, because a job that is retried came to
    the head of the line between their looks. So the second caller waits for the first one's commit, and looks then.
    """
    done = 0
    wanted: set[Any] = set(keys)
    if len(wanted) > 1:
        # Of many keys, most have a live job.
        rows = Job.objects.using(using).filter(order_key__in=wanted, order_position=None, state__in=LIVE)
        wanted -= set(rows.order_by().values_list("order_key", flat=True))
    for key in sorted(wanted):
        if (queue := store.release_first(using, key)) is not None:
            done += 1
            transaction.on_commit(partial(wakeups.notify, using, {queue}), using=using, robust=True)
    return done


def release_next(job: Job) -> None:
    """Release the next job after a run of this one. If the database is away, a tick does it later."""
    about = job.headers.get(EVENT_HEADER) or {}
    if about.get("order_key") is not None:
        using = str(job._state.db)
        with suppress(Error), of(using).write_mutex():
            release(using, [named(job.task, about["order_key"])])


def again(jobs: QuerySet[Job], using: str) -> dict[str, Any]:
    """The columns to set on an ended job that runs again: with an order key it waits until no other job of it lives."""
    found = jobs.values_list("pk", "order_key").first()
    if found is None or found[1] is None:
        return {}
    # Race: another process hands on an event of the key, and lets its job run at once if it sees no other live job.
    Relay.objects.using(using).select_for_update().filter(pk=1).first()
    transaction.on_commit(partial(release, using, [found[1]]), using=using, robust=True)
    # The position comes before all waiting jobs: the first 64 bits of the id, which hold the time when it was made.
    return {"state": State.SCHEDULED, "run_at": NEVER, "order_position": (found[0].int >> 64) - 2**63}


_seldom = Seldom(20)


def look_for_stuck(using: str) -> None:
    _seldom.take(using, partial(release_stuck, using))


def release_stuck(using: str) -> int:
    """Release the jobs that a process did not release, because it died after it had ended the job before them."""
    return release(using, store.stuck(using))
