"""What ended, counted by the minute, the hour and the quarter of a day: pages and metrics need not read the jobs.

How long jobs ran and waited is kept in buckets, which can be added up. Each ends 1.41 times as late as the one before,
so what is read out of them is at most a fifth off. As JSON has no numbers for keys, a bucket's number may be a text.
"""

import datetime
import json
import math
import time
import uuid
from collections import Counter, defaultdict, namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F, Max, QuerySet, Sum, TextField
from django.db.models.functions import Cast
from django.utils import timezone

from jobs.conf import conf
from jobs.contrib.operator.models import Statistic
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


# Counting, in a worker


class Count:
    """Counts what ended. Of several workers only the oldest does it.

    Parameters:
        node: this process's own node; without one it is no worker, and counts at once.
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
        rows = Statistic.objects.using(using)
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


def _fold(using: str, old: QuerySet[Statistic]) -> None:
    """Add old hours to one sum each, of length 0: a counter may only grow."""
    rows = Statistic.objects.using(using)
    with transaction.atomic(using=using):
        hours = list(old.select_for_update())
        for hour in hours:
            key = {name: getattr(hour, name) for name in KEY} | {"begin": BEGIN, "length": 0}
            total, _ = rows.get_or_create(**key, defaults={"count": 0})
            rows.filter(pk=total.pk).update(count=F("count") + hour.count)
        rows.filter(pk__in=[hour.pk for hour in hours])._raw_delete(using)


def floor(moment: datetime.datetime, step: datetime.timedelta) -> datetime.datetime:
    return BEGIN + (moment - BEGIN) // step * step


KEY = ("begin", "task", "queue", "state", "error")  #: What counts of one length differ in.

Counts = dict[tuple[Any, ...], Statistic]


def _at(found: Counts, length: int, *key: Any) -> Statistic:
    """The row of that key; a new one if none was found yet."""
    if key not in found:
        found[key] = Statistic(length=length, count=0, **dict(zip(KEY, key, strict=True)))
    return found[key]


def _replace(rows: QuerySet[Statistic], found: Counts) -> None:
    with transaction.atomic(using=rows.db):
        rows._raw_delete(rows.db)
        Statistic.objects.using(rows.db).bulk_create(found.values(), batch_size=500)


def count(using: str, begin: datetime.datetime, end: datetime.datetime) -> int:
    """Count one hour or a part of it anew, and add up the hour and the quarter of a day around it."""
    found = ended(using, begin, end)
    minutes = Statistic.objects.using(using).filter(length=60, begin__gte=begin, begin__lt=end)
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
        rows = Statistic.objects.using(using).filter(begin__gte=since, begin__lt=since + whole)
        totals: Counts = {}
        for row in rows.filter(length=part.seconds).iterator():
            total = _at(totals, whole.seconds, since, row.task, row.queue, row.state, row.error)
            total.count += row.count
            total.ran = dict(Counter(total.ran) + Counter(row.ran))
            total.waited = dict(Counter(total.waited) + Counter(row.waited))
        if totals:
            _replace(rows.filter(length=whole.seconds), totals)
    return sum(row.count for row in found.values())


def ended(using: str, begin: datetime.datetime, end: datetime.datetime, most: int | None = None) -> Counts:
    """What ended in between, by the minute; not stored. With ``most`` the newest ones only."""
    rows = Job.objects.using(using).filter(finished_at__gte=begin, finished_at__lt=end)
    if most is not None:
        rows = rows.order_by("-finished_at")[:most]
    found: Counts = {}
    names = ("finished_at", "task", "queue", "state", "error__type", "started_at", "run_at")
    for finished_at, task, queue, state, error, started_at, run_at in rows.values_list(*names).iterator():
        error = str(error or "")[:200] if state != State.SUCCEEDED else ""
        row = _at(found, 60, floor(finished_at, MINUTE), task, queue, state, error)
        row.count += 1
        if started_at is not None:
            for histogram, spent in ((row.ran, finished_at - started_at), (row.waited, started_at - run_at)):
                number = str(bucket(spent.total_seconds()))
                histogram[number] = histogram.get(number, 0) + 1
    return found


# Reading, for pages and metrics

MOST = 2000  #: At most so many ended jobs are counted for a page, the newest: it takes 30 ms.

#: A named tuple, because making models of them would take most of the page's time.
Row = namedtuple("Row", "begin task queue state error count ran waited")

#: Many histograms are equal, and decoding them took a third of the dashboard's time. A decoded one is never changed.
_histogram = lru_cache(10_000)(json.loads)


def of(stretch: datetime.timedelta, begin: datetime.datetime) -> list[Row]:
    """The counts of this length since then, of all job databases."""
    return [row for alias in conf().DATABASES for row in _of(alias, stretch, begin)]


def _of(using: str, stretch: datetime.timedelta, begin: datetime.datetime) -> Iterator[Row]:
    rows = Statistic.objects.using(using).filter(length=stretch.seconds, begin__gte=begin)
    texts = rows.annotate(rans=Cast("ran", TextField()), waits=Cast("waited", TextField()))
    for *names, ran, waited in texts.values_list(*Row._fields[:-2], "rans", "waits"):
        yield Row._make([*names, _histogram(ran), _histogram(waited)])


def last_hour() -> tuple[list[Row], list[Row]]:
    """The last hour by the minute: what was counted, and what was not yet (of very many jobs the newest)."""
    now, counted, rest = timezone.now(), [], []
    begin = floor(now, MINUTE) - HOUR
    for alias in conf().DATABASES:
        rows = list(_of(alias, MINUTE, begin))
        since = max((row.begin for row in rows), default=begin - MINUTE) + MINUTE
        counted += rows
        found = ended(alias, since, now + HOUR, MOST).values()
        rest += [Row(*(getattr(each, name) for name in Row._fields)) for each in found]
    return counted, rest


def counts(rows: Iterable[Row], *names: str) -> Counter[Any]:
    """How many jobs ended, by one column or by several."""
    key, found = attrgetter(*names), Counter[Any]()
    for row in rows:
        found[key(row)] += row.count
    return found


def ever() -> dict[str, Counter[tuple[str, ...]]]:
    """All that was ever counted, by its state: by task and queue, and failures by their errors as well."""
    found: dict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
    for alias in conf().DATABASES:
        # The hours that are kept, and the sum of those before them (length 0).
        rows = Statistic.objects.using(alias).filter(length__in=(0, 3600))
        for *names, error, state, count in rows.values_list("task", "queue", "error", "state").annotate(Sum("count")):
            found[state][(*names, error) if state == State.FAILED else tuple(names)] += count
    return found


# Buckets

#: Seconds at which the first bucket ends, and by how much each ends later than the one before.
LEAST, STEP = 0.001, math.sqrt(2)


def bucket(seconds: float) -> int:
    return 0 if seconds <= LEAST else math.ceil(round(math.log(seconds / LEAST, STEP), 9))


def middle(number: int) -> float:
    """The middle of a bucket, in seconds."""
    return float(LEAST * STEP ** (number - 0.5))


def mean(histogram: Mapping[Any, int]) -> float | None:
    """The mean in seconds; None of nothing."""
    total = sum(histogram.values())
    return sum(middle(int(number)) * count for number, count in histogram.items()) / total if total else None


def percentile(histogram: Mapping[Any, int], part: float) -> float | None:
    """Seconds within which ``part`` of all (0.95) ended; None of nothing. Also of a histogram as JSON has it."""
    needed = part * sum(histogram.values())
    seen = 0
    for number in sorted(histogram, key=int):
        seen += histogram[number]
        if seen >= needed and seen:
            return middle(int(number))
    return None
