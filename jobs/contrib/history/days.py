"""Days of history are made before they begin, and dropped when all of their jobs are past their retention."""

from __future__ import annotations

import datetime
import time
from typing import Any

from django.db import OperationalError, ProgrammingError, transaction
from django.db.models import Exists, OuterRef, Q

from jobs import extensions
from jobs.conf import conf
from jobs.conf.logs import logger
from jobs.contrib.history import store
from jobs.contrib.pruning.prune import FULL_WALK
from jobs.lifecycle.transitions import now_plus
from jobs.models import Job, Marker
from jobs.models.fields import first_id
from jobs.store import databases, of

#: How many days are made ahead, and how many ``migrate`` makes.
AHEAD, FIRST = 7, 2

#: If more jobs of a day than this are still needed, prune deletes row by row.
KEPT = 1000

#: By database and partition: when such a day is looked at again, on the monotonic clock.
_again_at: dict[tuple[str, str], float] = {}


def prune(using: str, budget: float) -> int:
    """Make days, and drop those that are over; returns how many jobs went with them."""
    if not of(using).is_divided:
        store.mend(using)
        return 0
    now = databases.clock(using)
    store.make_days(using, AHEAD, now)
    deleted, until = 0, time.monotonic() + budget
    if (retention := conf().RETENTION) is None:
        return 0
    over = now - datetime.timedelta(seconds=retention)
    for day, name in store.days(using).items():
        if store.bounds(day)[1] > over or time.monotonic() > until:
            break
        if time.monotonic() >= _again_at.get((using, name), 0.0):
            deleted += _drop(using, day, name, retention)
    return deleted


def _drop(using: str, day: datetime.date, name: str, retention: float) -> int:
    begin, end = store.bounds(day)
    jobs = Job.objects.using(using).filter(state__in=store.BY_DAY, pk__gte=first_id(begin), pk__lt=first_id(end))
    # Other jobs with ids of that day stay: those that ended soon after the upgrade are still in the live table.
    jobs = store.within(jobs, name)
    over = now_plus(-retention)
    needed: Any = Q(finished_at__gte=over) | Exists(Marker.objects.using(using).filter(job=OuterRef("pk")))
    for keep, _ in extensions.through("needed"):
        needed |= Q(keep(using))
    kept = jobs.filter(needed).values_list("pk", flat=True)[: KEPT + 1]
    if len(kept) > KEPT:
        _again_at[using, name] = time.monotonic() + FULL_WALK
        return 0
    try:
        with transaction.atomic(using=using):
            store.lock_day(using, name)
            # Read again, under the lock: a person may have let one run again, or a marker may point at one.
            ids = list(kept.all())
            if len(ids) > KEPT:
                return 0
            gone = jobs.exclude(pk__in=ids) if ids else jobs
            number = gone.count()
            for tell in extensions.through("deleting"):
                tell(gone, using, lambda column: Q(**{f"{column}__in": gone.values("pk")}))
            store.drop_day(using, name, ids)
    except (OperationalError, ProgrammingError) as exc:
        if not store.is_refused(exc):
            raise
        # Another session reads it, and the next round comes soon; or another role owns it: then prune deletes the rows.
        return 0
    return number


def complete(using: str) -> Any:
    """Called after ``migrate``. A divided table stays divided, also if the settings no longer say so."""
    # After ``migrate jobs zero`` the table that this process remembers is gone.
    at: Any = of(using)
    at.divided = (False, 0.0)
    try:
        if (conf().HISTORY_BY_DAY and store.divide(using)) or at.is_divided:
            store.make_days(using, FIRST, databases.clock(using))
    except (OperationalError, ProgrammingError) as exc:
        if not store.is_refused(exc):
            raise
        text = "the table jobs_job is in use: migrate again to give history a table of its own (%s)"
        logger.warning(text, exc, extra={"action": "not_divided"})
