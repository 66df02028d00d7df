"""Count what ended, by the minute, the hour and the quarter of a day, so that the dashboard need not read the jobs."""

import datetime
import time
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F, Max, QuerySet

from jobs.contrib.statistics.histograms import bucket
from jobs.contrib.statistics.models import Tally
from jobs.maintenance import is_eldest
from jobs.models import Job, State
from jobs.store import databases

MINUTE, HOUR, QUARTER = datetime.timedelta(minutes=1), datetime.timedelta(hours=1), datetime.timedelta(hours=6)

BEGIN = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

AGAIN = 2 * MINUTE  #: So many minutes are counted again: a commit may come late.

#: For how long minutes, hours and quarters of days are kept.
MINUTES_KEPT, HOURS_KEPT, QUARTERS_KEPT = 25 * HOUR, 24 * 31 * HOUR, 24 * 8 * HOUR

#: Seconds that a worker counts at the most: its other work waits meanwhile, and the rest is counted the next time.
LONGEST_COUNT = 1.0


class Count:
    """Counts what ended. Of several workers only the oldest does it.

    Parameters:
        node: this process's own node; without one it is no worker, and somebody wants it done.
    """

    def __init__(self, node: Callable[[], uuid.UUID] | None = None) -> None:
        self._node = node
        self._done: dict[str, datetime.datetime] = {}  #: For each database: until when it is counted.

    def run_once(self) -> dict[str, int]:
        return {"jobs": databases.everywhere(self._run)}

    def _run(self, using: str) -> int:
        if not is_eldest(self._node, using):
            return 0
        end = floor(databases.clock(using), MINUTE)
        # Whole hours, because they are added up again from their minutes.
        oldest_minute = floor(end - MINUTES_KEPT, HOUR)
        rows = Tally.objects.using(using)
        last = rows.filter(length=60).aggregate(Max("begin"))["begin__max"]
        begin = self._done.get(using) or (last and last + MINUTE) or oldest_minute
        if begin >= end:
            return 0
        counted, deadline = 0, time.monotonic() + LONGEST_COUNT
        # Hour by hour: after a long absence of all workers, all of it at once would be too much.
        since = max(begin - AGAIN, oldest_minute)
        while since < end:
            until = min(end, floor(since, HOUR) + HOUR)
            try:
                counted += count(using, since, until)
            except IntegrityError:
                # Race: another process counts the same at this moment, with the same result.
                return counted
            self._done[using] = max(begin, until)
            # Beyond the minutes that are counted again: else it would never get on.
            if self._node is not None and begin < until < end and time.monotonic() > deadline:
                return counted
            since = until
        rows.filter(length=60, begin__lt=oldest_minute)._raw_delete(using)
        rows.filter(length=QUARTER.seconds, begin__lt=end - QUARTERS_KEPT)._raw_delete(using)
        _fold(using, rows.filter(length=3600, begin__lt=end - HOURS_KEPT))
        return counted


def _fold(using: str, old: QuerySet[Tally]) -> None:
    """Add old hours to one sum each, of length 0: a counter may only grow."""
    rows = Tally.objects.using(using)
    with transaction.atomic(using=using):
        hours = list(old.select_for_update())
        for hour in hours:
            key = {name: getattr(hour, name) for name in KEY} | {"begin": BEGIN, "length": 0}
            total, _ = rows.get_or_create(**key, defaults={"count": 0})
            rows.filter(pk=total.pk).update(count=F("count") + hour.count)
        rows.filter(pk__in=[hour.pk for hour in hours])._raw_delete(using)


def floor(moment: datetime.datetime, step: datetime.timedelta) -> datetime.datetime:
    return BEGIN + (moment - BEGIN) // step * step


KEY = ("begin", "task", "queue", "state", "error")  #: What tallies of one length differ in.

Tallies = dict[tuple[Any, ...], Tally]


def _at(found: Tallies, length: int, *key: Any) -> Tally:
    """The tally of that key; a new one if none was found yet."""
    if key not in found:
        found[key] = Tally(length=length, count=0, **dict(zip(KEY, key, strict=True)))
    return found[key]


def _replace(rows: QuerySet[Tally], found: Tallies) -> None:
    with transaction.atomic(using=rows.db):
        rows._raw_delete(rows.db)
        Tally.objects.using(rows.db).bulk_create(found.values(), batch_size=500)


def count(using: str, begin: datetime.datetime, end: datetime.datetime) -> int:
    """Count one hour or a part of it anew, and add up the hour and the quarter of a day around it."""
    found = ended(using, begin, end)
    minutes = Tally.objects.using(using).filter(length=60, begin__gte=begin, begin__lt=end)
    for old in minutes:
        key = tuple(getattr(old, name) for name in KEY)
        # A job that was counted and is gone did end: it was retried or deleted since.
        if key not in found or old.count > found[key].count:
            old.pk = None
            found[key] = old
    if not found:
        return 0
    _replace(minutes, found)
    for part, whole in ((MINUTE, HOUR), (HOUR, QUARTER)):
        # The whole hour (or quarter of a day), even if it is not over.
        since = floor(begin, whole)
        rows = Tally.objects.using(using).filter(begin__gte=since, begin__lt=since + whole)
        totals: Tallies = {}
        for row in rows.filter(length=part.seconds).iterator():
            total = _at(totals, whole.seconds, since, row.task, row.queue, row.state, row.error)
            total.count += row.count
            total.ran = dict(Counter(total.ran) + Counter(row.ran))
            total.waited = dict(Counter(total.waited) + Counter(row.waited))
        if totals:
            _replace(rows.filter(length=whole.seconds), totals)
    return sum(tally.count for tally in found.values())


def ended(using: str, begin: datetime.datetime, end: datetime.datetime, most: int | None = None) -> Tallies:
    """What ended in between, by the minute; not stored. With ``most`` the newest ones only."""
    rows = Job.objects.using(using).filter(finished_at__gte=begin, finished_at__lt=end)
    if most is not None:
        rows = rows.order_by("-finished_at")[:most]
    found: Tallies = {}
    names = ("finished_at", "task", "queue", "state", "error__type", "started_at", "run_at")
    for finished_at, task, queue, state, error, started_at, run_at in rows.values_list(*names).iterator():
        error = str(error or "")[:200] if state != State.SUCCEEDED else ""
        tally = _at(found, 60, floor(finished_at, MINUTE), task, queue, state, error)
        tally.count += 1
        if started_at is not None:
            for histogram, spent in ((tally.ran, finished_at - started_at), (tally.waited, started_at - run_at)):
                number = str(bucket(spent.total_seconds()))
                histogram[number] = histogram.get(number, 0) + 1
    return found
