"""The entries of the schedule: when each is due, how its last job ended, and what is wrong with it."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

from django.db.models import OuterRef, QuerySet, Subquery
from django.db.models.functions import Now
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs.contrib.inspection.counts import workers
from jobs.contrib.inspection.view import Reason, View
from jobs.contrib.schedules.entries import NAME, TICK
from jobs.contrib.schedules.models import Schedule
from jobs.contrib.schedules.scheduler import GONE
from jobs.contrib.schedules.ticks import IN_TIME
from jobs.models import Job
from jobs.store import databases

STATUSES = {
    "paused": _("paused"),
    "undefined": _("no longer defined by any worker"),
    "over": _("over"),
    "error": _("its job could not be made"),
    "overdue": _("overdue"),
    "missed": _("missed a tick"),
    "fine": _("in time"),
}

#: For this long after its last call, ``celery beat`` is reported as running beside the workers.
BESIDE = datetime.timedelta(hours=1)


def has_workers() -> bool:
    return any(node.takes_jobs for node in workers())


def status(row: Any, has_workers: bool) -> str:
    """One of :data:`STATUSES`, for a row with ``now`` by the database's clock."""
    is_gone = not row.definition or (has_workers and row.seen_at < row.now - datetime.timedelta(seconds=GONE))
    is_missed = row.missed_at is not None and (row.last_run is None or row.last_run <= row.missed_at)
    found = (
        ("paused", row.paused_at is not None),
        ("undefined", is_gone),
        ("over", row.next_tick is None),
        ("error", bool(row.error)),
        ("overdue", row.next_tick is not None and row.next_tick < row.now - IN_TIME),
        ("missed", is_missed),
        ("fine", True),
    )
    return next(name for name, is_so in found if is_so)


def known(rows: QuerySet[Schedule]) -> QuerySet[Any]:
    """The rows with ``now`` by the database's clock, and the ``state`` of the last job, if that job still exists."""
    return rows.annotate(now=Now(), state=Subquery(Job.objects.filter(pk=OuterRef("last_job")).values("state")))


def look_at(rows: QuerySet[Any], has_workers: bool) -> list[Any]:
    """Give each of the :func:`known` rows its ``status``."""
    found = list(rows)
    for row in found:
        row.status = status(row, has_workers)
    return found


def gather(has_workers: bool) -> list[dict[str, Any]]:
    """All entries, the next due first."""
    names = "name task timing next_tick last_run last_job missed missed_at error paused_at paused_by reason beat_at"
    rows = [row for each in databases.each(known(Schedule.objects.all())) for row in look_at(each, has_workers)]
    rows.sort(key=lambda row: (row.next_tick is None, row.next_tick or row.last_tick, row.name))
    return [
        {name: getattr(row, name) for name in (*names.split(), "status", "state")}
        | {"overdue_seconds": max(0.0, (row.now - row.next_tick).total_seconds()) if row.next_tick else 0.0}
        | {"beat": row.beat_at is not None and row.beat_at > row.now - BESIDE}
        for row in rows
    ]


def reasons(view: View) -> Iterator[Reason]:
    """Where the job comes from."""
    if (name := view.job.headers.get(NAME)) is None:
        return
    tick = view.job.headers.get(TICK)
    made = gettext("The schedule %(name)s made it for its tick of %(tick)s.")
    says = made if tick else gettext("It was made by hand, of the schedule %(name)s.")
    cure = ""
    row = Schedule.objects.using(view.using).filter(pk=name).first()
    if row is not None and row.paused_at is not None:
        cure = gettext("The schedule is paused: manage.py jobs schedule --resume %r") % name
    yield Reason("schedule", says, cure, name=name, tick=tick)
