"""What people do to jobs that wait, or that have ended: transitions, each one conditional statement.

Each races with a claim: both check the row's state, and the later one finds it changed.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

from django.db import IntegrityError, OperationalError, transaction
from django.db.models import Exists

from jobs import extensions, store
from jobs.conf import conf
from jobs.errors import UniqueBusy, UniqueTaken
from jobs.lifecycle import transitions, unique, wakeups
from jobs.models import UNSUCCESSFUL, WAITING, Cancellation, Job, State
from jobs.models.columns import Part, named
from jobs.store import databases

#: The counters of a job.
COUNTS = named(Part.COUNT)


def redirect(job_id: uuid.UUID, using: str, columns: dict[str, Any], states: Sequence[str] = WAITING) -> bool:
    """Change where a job waits: its queue, its priority, its time. The workers are told after the commit."""
    rows = Job.objects.using(using).filter(pk=job_id)
    # A job that was held back stood elsewhere in its line.
    write = partial(rows.filter(state__in=states).update, **{"held": None, **columns})
    if databases.again_if_moved(using, write, is_one=True) != 1:
        return False
    queues = rows.filter(state=State.READY).values_list("queue", flat=True)
    transaction.on_commit(lambda: wakeups.notify(using, queues), using=using, robust=True)
    return True


def waits_for_its_time(job: Job) -> bool:
    """A scheduled job may also wait for something else, however late that comes."""
    return not transitions.NEVER <= job.run_at < transitions.PARKED


def run_now(job_id: uuid.UUID, using: str) -> bool:
    """A scheduled job waits no longer for its time. One that waits for something else still does."""
    rows = Job.objects.using(using).filter(pk=job_id)
    if rows.filter(state=State.SCHEDULED, run_at__gte=transitions.NEVER, run_at__lt=transitions.PARKED).exists():
        return False
    return redirect(job_id, using, transitions.waiting(None), (State.SCHEDULED,))


def retry_by_hand(job_id: uuid.UUID, using: str) -> bool:
    """Run a failed or cancelled job again, its counts at zero. ``lease`` stays: it is the fence.

    Raises:
        UniqueTaken: another job has its unique key; says which.
        UniqueBusy: another transaction may be taking it.
        Busy: an extension still works at its end.
    """
    over = Job.objects.using(using).filter(pk=job_id, state__in=UNSUCCESSFUL)
    # Only the notes of ended jobs: they were for the run before.
    Cancellation.objects.using(using).filter(Exists(over), pk=job_id).delete()
    anew: dict[str, Any] = dict.fromkeys(COUNTS, 0)
    anew |= {"unique_key": transitions.UNEXPIRED_KEY, "finished_at": None, "expires_at": None}
    try:
        with store.of(using).bounded(conf().UNIQUE_WAIT):
            columns = transitions.waiting(None) | anew
            for again in extensions.through("again"):
                columns |= again(over, using)
            return redirect(job_id, using, columns, UNSUCCESSFUL)
    except IntegrityError:
        raise UniqueTaken(unique.describe(Job.objects.using(using).get(pk=job_id))) from None
    except OperationalError as exc:
        if not databases.gave_up(exc):
            raise
        raise UniqueBusy("another transaction is about to take its unique key; try again in a moment") from exc
