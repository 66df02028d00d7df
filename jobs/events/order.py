"""Jobs that wait behind others: of those of one ``order_key`` one after the other runs, each when the one before ended.

A job that waits behind others has a position (``order_position``), the smallest first, and a time that never comes. To
release it takes away both. It is released if no other job of its key is live, be that to run or to be tried again. The
process that ends a job releases the next one. If it dies before it does, the next tick of any worker finds that one.
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

    Race: two callers may see that there is none, and each releases another job: between their looks one that is tried
    again came to the head of the line. So the second caller waits for the first one's commit, and looks after it.
    """
    done = 0
    wanted: set[Any] = set(keys)
    if len(wanted) > 1:
        # Most of many have a live one.
        rows = Job.objects.using(using).filter(order_key__in=wanted, order_position=None, state__in=LIVE)
        wanted -= set(rows.order_by().values_list("order_key", flat=True))
    for key in sorted(wanted):
        if (queue := store.release_first(using, key)) is not None:
            done += 1
            transaction.on_commit(partial(wakeups.notify, using, {queue}), using=using, robust=True)
    return done


def release_next(job: Job) -> None:
    """A run of the job is over. Without a database a tick does it later."""
    about = job.headers.get(EVENT_HEADER) or {}
    if about.get("order_key") is not None:
        using = str(job._state.db)
        with suppress(Error), of(using).write_mutex():
            release(using, [named(job.task, about["order_key"])])


def again(jobs: QuerySet[Job], using: str) -> dict[str, Any]:
    """The columns of an ended job that runs again: with an order key it waits until no other one of the key is live."""
    found = jobs.values_list("pk", "order_key").first()
    if found is None or found[1] is None:
        return {}
    # Race: the process that hands an event of the key on releases it at once if there is no other one.
    Relay.objects.using(using).select_for_update().filter(pk=1).first()
    transaction.on_commit(partial(release, using, [found[1]]), using=using, robust=True)
    # Before all that wait, by the first 64 bits of its id: the time at which it was made.
    return {"state": State.SCHEDULED, "run_at": NEVER, "order_position": (found[0].int >> 64) - 2**63}


_seldom = Seldom(20)


def look_for_stuck(using: str) -> None:
    _seldom.take(using, partial(release_stuck, using))


def release_stuck(using: str) -> int:
    """Release the jobs that were not released, because the process died that had ended the one before."""
    return release(using, store.stuck(using))
