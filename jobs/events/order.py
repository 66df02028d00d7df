"""Jobs that wait behind others: of those of one ``order_key`` one after the other runs, each when the one before ended.

A job that waits behind others has a place, the smallest first, and a time that never comes. To let it in takes away
both. It is let in as long as no other job of its key is out, be that to run or to be tried again. Whoever ends a job
lets in the next one; if that process dies before it does, the next tick of any worker finds it.
"""

import uuid
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from django.db import Error, transaction
from django.db.models import QuerySet

from jobs.database import turns
from jobs.events import store
from jobs.events.models import EVENT_HEADER, Relay
from jobs.lifecycle import ring
from jobs.lifecycle.transitions import NEVER
from jobs.maintenance import Seldom
from jobs.models import LIVE, Job, State
from jobs.models.values import named


def let_in(using: str, keys: Iterable[str]) -> int:
    """Let in the first job of each key of which none is out; returns how many were let in.

    Race: two callers may see that none is out, and each lets in another job: between their looks one that is tried
    again came to the head of the line. So the second caller waits for the first one's commit, and looks after it.
    """
    done = 0
    wanted: set[Any] = set(keys)
    if len(wanted) > 1:
        # Most of many have one that is out.
        rows = Job.objects.using(using).filter(order_key__in=wanted, order_place=None, state__in=LIVE)
        wanted -= set(rows.order_by().values_list("order_key", flat=True))
    for key in sorted(wanted):
        queue = store.let_in_first(using, key)
        if queue is not None:
            done += 1
            transaction.on_commit(partial(ring.ring, using, {queue}), using=using, robust=True)
    return done


def let_in_next(job: Job) -> None:
    """A run of the job is over. Without a database a tick does it later."""
    about = job.headers.get(EVENT_HEADER) or {}
    if about.get("order_key") is not None:
        using = str(job._state.db)
        with suppress(Error), turns.turn(using):
            let_in(using, [named(job.task, about["order_key"])])


def again(jobs: QuerySet[Job], using: str) -> dict[str, Any]:
    """The columns of an ended job that runs again: with an order key it waits until no other one of the key is out."""
    found = jobs.values_list("pk", "order_key").first()
    if found is None or found[1] is None:
        return {}
    # Race: whoever hands an event of the key on lets it in at once if there is no other one.
    Relay.objects.using(using).select_for_update().filter(pk=1).first()
    transaction.on_commit(partial(let_in, using, [found[1]]), using=using, robust=True)
    return behind(found[0])


def behind(job_id: uuid.UUID) -> dict[str, Any]:
    """The columns of a job that is run once more, until it is let in: before all that wait, in the order of their ids.

    The first 64 bits of an id are the time at which it was made.
    """
    return {"state": State.SCHEDULED, "run_at": NEVER, "order_place": (job_id.int >> 64) - 2**63}


_seldom = Seldom(20)


def look_for_stuck(using: str) -> None:
    _seldom.take(using, partial(let_in_stuck, using))


def let_in_stuck(using: str) -> int:
    """Let in where nobody did, because the process died that had ended the one before."""
    return let_in(using, store.stuck(using))
