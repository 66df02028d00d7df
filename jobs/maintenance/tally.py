"""Count what ended, by the minute, the hour and the quarter of a day, so that the dashboard need not read the jobs."""

from __future__ import annotations

import datetime
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from django.db import IntegrityError, connections, transaction
from django.db.models import F, Max, QuerySet

from jobs import databases
from jobs.conf import conf
from jobs.histogram import bucket
from jobs.maintenance.eldest import is_eldest
from jobs.models import Job, State, Tally

MINUTE, HOUR, QUARTER = datetime.timedelta(minutes=1), datetime.timedelta(hours=1), datetime.timedelta(hours=6)

BEGIN = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

#: Minutes that are counted again: a commit may come late.
AGAIN = 2 * MINUTE

#: For how long minutes, hours and quarters of days are kept.
MINUTES_KEPT, HOURS_KEPT, QUARTERS_KEPT = 25 * HOUR, 24 * 31 * HOUR, 24 * 8 * HOUR


#: Seconds after which a worker leaves the rest to the next time: its other work waits meanwhile.
LONGEST_COUNT = 1.0


class Count:
    """The sibling of rescue and prune that counts. Of several workers the oldest does it."""

    def __init__(self, node: Callable[[], uuid.UUID] | None = None) -> None:
        #: This process's node; None: no worker, so somebody wants it done.
        self._node = node
        #: For each database: until when it is counted.
        self._done: dict[str, datetime.datetime] = {}

    def run_once(self) -> dict[str, int]:
        done = {"jobs": 0}
        for alias in conf().DATABASES:
            done["jobs"] += databases.guarded(alias, partial(self._run, alias)) or 0
        return done

    def _run(self, using: str) -> int:
        if not is_eldest(self._node, using):
            return 0
        end = floor(clock(using), MINUTE)
        # Whole hours, because they are added up again from their minutes.
        oldest_minute = floor(end - MINUTES_KEPT, HOUR)
        begin = self._done.get(using) or _counted_until(using) or oldest_minute
        if begin >= end:
            return 0
        counted = 0
        deadline = time.monotonic() + LONGEST_COUNT
        # Hour by hour: after a long absence of all workers one look must not hold all of it.
        since = max(begin - AGAIN, oldest_minute)
        while since < end:
            until = min(end, floor(since, HOUR) + HOUR)
            try:
                counted += count(using, since, until)
            except IntegrityError:
                # Race: another one counts the same at this moment, and both come to the same.
                return counted
            since = until
            # Not where it began: the minutes that are counted again would be all that is ever counted.
            if self._node is not None and begin < until < end and time.monotonic() > deadline:
                self._done[using] = until
                return counted
        self._done[using] = end
        rows = Tally.objects.using(using)
        rows.filter(length=60, begin__lt=oldest_minute)._raw_delete(using)
        rows.filter(length=seconds(QUARTER), begin__lt=end - QUARTERS_KEPT)._raw_delete(using)
        _fold(using, rows.filter(length=3600, begin__lt=end - HOURS_KEPT))
        return counted


def _fold(using: str, old: QuerySet[Tally]) -> None:
    """Hours that grew old live on in one sum each, of length 0: counters only grow."""
    with transaction.atomic(using=using):
        hours = list(old.select_for_update())
        for hour in hours:
            key = {"task": hour.task, "queue": hour.queue, "state": hour.state, "error": hour.error}
            values = {"begin": BEGIN, "length": 0, **key}
            total, _ = Tally.objects.using(using).get_or_create(**values, defaults={"count": 0})
            Tally.objects.using(using).filter(pk=total.pk).update(count=F("count") + hour.count)
        Tally.objects.using(using).filter(pk__in=[hour.pk for hour in hours])._raw_delete(using)


def _counted_until(using: str) -> datetime.datetime | None:
    last = Tally.objects.using(using).filter(length=60).aggregate(Max("begin"))["begin__max"]
    return last and last + MINUTE


def clock(using: str) -> datetime.datetime:
    """The database's."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT CURRENT_TIMESTAMP")
        now = cursor.fetchone()[0]
    if isinstance(now, str):
        now = datetime.datetime.fromisoformat(now)
    return now if now.tzinfo else now.replace(tzinfo=datetime.UTC)


def floor(moment: datetime.datetime, step: datetime.timedelta) -> datetime.datetime:
    return BEGIN + (moment - BEGIN) // step * step


def seconds(stretch: datetime.timedelta) -> int:
    """The length of its tallies."""
    return int(stretch.total_seconds())


def count(using: str, begin: datetime.datetime, end: datetime.datetime) -> int:
    """One hour or a part of it, and what that is a part of."""
    counted = count_minutes(using, begin, end)
    add_up(using, MINUTE, floor(begin, HOUR), HOUR)
    add_up(using, HOUR, floor(begin, QUARTER), QUARTER)
    return counted


def ended(using: str, begin: datetime.datetime, end: datetime.datetime) -> Iterable[Tally]:
    """What ended in between, by the minute; not stored."""
    rows = Job.objects.using(using).filter(finished_at__gte=begin, finished_at__lt=end)
    found: dict[tuple[Any, ...], Tally] = {}
    names = ("finished_at", "task", "queue", "state", "error__type", "started_at", "run_at")
    for finished_at, task, queue, state, error, started_at, run_at in rows.values_list(*names).iterator():
        error = str(error or "")[:200] if state != State.SUCCEEDED else ""
        key = (floor(finished_at, MINUTE), task, queue, state, error)
        tally = found.get(key)
        if tally is None:
            tally = found[key] = Tally(
                length=60, begin=key[0], task=task, queue=queue, state=state, error=error, count=0
            )
        tally.count += 1
        if started_at is not None:
            _note(tally.ran, (finished_at - started_at).total_seconds())
            _note(tally.waited, (started_at - run_at).total_seconds())
    return found.values()


def _note(histogram: dict[str, int], seconds: float) -> None:
    number = str(bucket(max(0.0, seconds)))
    histogram[number] = histogram.get(number, 0) + 1


def count_minutes(using: str, begin: datetime.datetime, end: datetime.datetime) -> int:
    """What was counted before and is not there any more did end: it was retried since, or deleted."""
    found = {_key(tally): tally for tally in ended(using, begin, end)}
    for old in Tally.objects.using(using).filter(length=60, begin__gte=begin, begin__lt=end):
        if old.count > getattr(found.get(_key(old)), "count", 0):
            old.pk = None
            found[_key(old)] = old
    _replace(using, 60, begin, end, list(found.values()))
    return sum(tally.count for tally in found.values())


def _key(tally: Tally) -> tuple[Any, ...]:
    return tally.begin, tally.task, tally.queue, tally.state, tally.error


def add_up(using: str, part: datetime.timedelta, begin: datetime.datetime, whole: datetime.timedelta) -> None:
    """The parts of one whole, be it over or not."""
    found: dict[tuple[str, ...], Tally] = {}
    length = seconds(whole)
    rows = Tally.objects.using(using).filter(length=seconds(part), begin__gte=begin, begin__lt=begin + whole)
    for row in rows.iterator():
        key = (row.task, row.queue, row.state, row.error)
        if key not in found:
            found[key] = Tally(
                length=length, begin=begin, task=row.task, queue=row.queue, state=row.state, error=row.error, count=0
            )
        total = found[key]
        total.count += row.count
        total.ran = dict(Counter(total.ran) + Counter(row.ran))
        total.waited = dict(Counter(total.waited) + Counter(row.waited))
    if found:
        _replace(using, length, begin, begin + whole, list(found.values()))


def _replace(using: str, length: int, begin: datetime.datetime, end: datetime.datetime, tallies: list[Tally]) -> None:
    with transaction.atomic(using=using):
        Tally.objects.using(using).filter(length=length, begin__gte=begin, begin__lt=end)._raw_delete(using)
        Tally.objects.using(using).bulk_create(tallies, batch_size=500)
