"""Counts of ended jobs by minute, hour and quarter of a day, so that pages and metrics need not read the jobs.

How long jobs ran and waited is kept in buckets, which can be added up. Each ends 1.41 times as late as the one before,
so a value read from them is at most a fifth off. JSON has no numbers as keys, so a bucket's number may be a text.
"""

import datetime
import json
import math
import time
import uuid
from collections import Counter, defaultdict, namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

from django.db import IntegrityError, models, transaction
from django.db.models import Case, F, FloatField, Func, Max, Min, QuerySet, Sum, TextField, Value, When
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Ceil, Greatest, Ln, TruncMinute
from django.utils import timezone

from jobs import extensions, store
from jobs.conf import conf
from jobs.contrib.inspection.times import duration
from jobs.contrib.operator.models import Statistic
from jobs.contrib.pruning.prune import is_eldest
from jobs.maintenance import give_way
from jobs.models import Job, State
from jobs.store import databases

MINUTE, HOUR, QUARTER = datetime.timedelta(minutes=1), datetime.timedelta(hours=1), datetime.timedelta(hours=6)

BEGIN = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

#: These last minutes are checked again, and recounted if more jobs have ended in them: a commit may come late.
AGAIN = 2 * MINUTE

#: How far back the very first worker counts.
COUNTED = 25 * HOUR

#: For how long minutes, hours and quarters of days are kept: a little longer than pages show them. A thousand tasks
#: make a thousand rows for each minute, hour and quarter.
MINUTES_KEPT, HOURS_KEPT, QUARTERS_KEPT = 3 * HOUR, 48 * HOUR, 24 * 8 * HOUR

#: The most seconds that a worker counts at a time: its other work waits meanwhile. The rest is counted the next time.
LONGEST_COUNT = 1.0


# Counting, in a worker


class Count:
    """Counts ended jobs. Of several workers only the oldest counts.

    Parameters:
        node: this process's own node; without one the process is not a worker, and counts at once.
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
        oldest = floor(end - COUNTED, HOUR)
        rows = Statistic.objects.using(using)
        begin = self._done.get(using) or max(_last(using), oldest)
        if begin >= end:
            return 0
        counted, deadline = 0, time.monotonic() + LONGEST_COUNT
        # Hour by hour: after a long time without workers, one statement for everything would be too large.
        since = max(_first_changed(using, begin - AGAIN, begin), oldest)
        while since < end:
            until = min(end, floor(since, HOUR) + HOUR)
            try:
                counted += count(using, since, until)
            except IntegrityError:
                # Race: another process has counted the same at this moment, with the same result.
                return counted
            self._done[using] = max(begin, until)
            extensions.instead(give_way)()
            # Stop only beyond the minutes that are counted again, or it would never make progress.
            if self._node is not None and begin < until < end and time.monotonic() > deadline:
                return counted
            since = until
        rows.filter(length=60, begin__lt=floor(end - MINUTES_KEPT, HOUR))._raw_delete(using)
        rows.filter(length=QUARTER.seconds, begin__lt=end - QUARTERS_KEPT)._raw_delete(using)
        _fold(using, rows.filter(length=3600, begin__lt=end - HOURS_KEPT))
        return counted


def _last(using: str) -> datetime.datetime:
    """Until when the stored rows count: old minutes are deleted, but their hours are complete."""
    for length in (MINUTE, HOUR):
        rows = Statistic.objects.using(using).filter(length=length.seconds)
        if (begin := rows.aggregate(Max("begin"))["begin__max"]) is not None:
            return begin + length
    return BEGIN


def _first_changed(using: str, begin: datetime.datetime, end: datetime.datetime) -> datetime.datetime:
    """The first minute in which more jobs have ended than were counted; the end if there is none."""
    rows = Statistic.objects.using(using).filter(length=60, begin__gte=begin, begin__lt=end)
    known = dict(rows.values_list("begin").annotate(Sum("count")))
    while begin < end:
        jobs = Job.objects.using(using).filter(finished_at__gte=begin, finished_at__lt=begin + MINUTE)
        if jobs.count() > known.get(begin, 0):
            return begin
        begin += MINUTE
    return end


def _fold(using: str, old: QuerySet[Statistic]) -> None:
    """Add old hours to sums, which have length 0, because a counter may only grow."""
    with transaction.atomic(using=using):
        hours = {row.pk: row for row in old.select_for_update()}
        found: Counts = {}
        for row in hours.values():
            _at(found, 0, BEGIN, row.task, row.queue, row.state, row.error).count += row.count
        if found:
            totals = Statistic.objects.using(using).filter(length=0)
            there = {_key(row): row for row in totals.select_for_update() if _key(row) in found}
            for key, row in there.items():
                found[key].count += row.count
            _replace(using, [*hours, *(row.pk for row in there.values())], found)


def floor(moment: datetime.datetime, step: datetime.timedelta) -> datetime.datetime:
    return BEGIN + (moment - BEGIN) // step * step


KEY = ("begin", "task", "queue", "state", "error")  #: The columns that tell apart counts of one length.

Counts = dict[tuple[Any, ...], Statistic]


def _at(found: Counts, length: int, *key: Any) -> Statistic:
    """The row with that key; a new one if there was none yet."""
    if key not in found:
        found[key] = Statistic(length=length, count=0, **dict(zip(KEY, key, strict=True)))
    return found[key]


def _key(row: Statistic) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in KEY)


def _replace(using: str, old: list[int], found: Counts) -> None:
    """Race: another process counts the same at this moment. If both insert a row, one fails and adds nothing."""
    rows = Statistic.objects.using(using)
    if old:
        rows.filter(store.of(using).among("pk", old))._raw_delete(using)
    rows.bulk_create(found.values(), batch_size=500)


def count(using: str, begin: datetime.datetime, end: datetime.datetime) -> int:
    """Count one hour or a part of it, and add what is new to the hour and the quarter of a day around it."""
    found, rows = ended(using, begin, end), Statistic.objects.using(using)
    with transaction.atomic(using=using):
        minutes = rows.filter(length=60, begin__gte=begin, begin__lt=end).select_for_update()
        old = {_key(row): row for row in minutes}
        # A counted job that is gone did end: it was retried or deleted since. So counts never shrink.
        new = {key: row for key, row in found.items() if key not in old or row.count > old[key].count}
        if not new:
            return 0
        old = {key: row for key, row in old.items() if key in new}
        for whole in (HOUR, QUARTER):
            totals: Counts = {}
            for part, sign in ((new, 1), (old, -1)):
                for key, row in part.items():
                    _add(_at(totals, whole.seconds, floor(begin, whole), *key[1:]), row, sign)
            around = rows.filter(length=whole.seconds, begin=floor(begin, whole)).select_for_update()
            there = {_key(row): row for row in around if _key(row) in totals}
            for key, row in there.items():
                _add(totals[key], row)
            _replace(using, [row.pk for row in there.values()], totals)
        _replace(using, [row.pk for row in old.values()], new)
    return sum(row.count for row in new.values()) - sum(row.count for row in old.values())


def _add(total: Statistic, row: Statistic, sign: int = 1) -> None:
    total.count += sign * row.count
    for name in ("ran", "waited"):
        histogram = getattr(total, name)
        for number, times in getattr(row, name).items():
            histogram[number] = histogram.get(number, 0) + sign * times


class Seconds(Func):
    """The length of a time span in seconds."""

    template, output_field = "(%(expressions)s / 1000000.0)", FloatField()

    def as_postgresql(self, compiler: Any, connection: Any, **more: Any) -> Any:
        template = "EXTRACT(EPOCH FROM %(expressions)s)::double precision"
        return self.as_sql(compiler, connection, template=template, **more)


def _bucket(begin: str, end: str) -> Case:
    """:func:`bucket` in SQL; None for a job that never began."""
    spent = Greatest(Seconds(F(end) - F(begin)), Value(LEAST), output_field=FloatField())
    number = Ceil(Ln(spent / Value(LEAST)) / Value(math.log(STEP)) - Value(NEARLY), output_field=FloatField())
    return Case(When(started_at__isnull=False, then=number), output_field=FloatField())


def ended(using: str, begin: datetime.datetime, end: datetime.datetime, most: int | None = None) -> Counts:
    """Counts by the minute of jobs that ended in between, not stored. With ``most``: of about that many newest ones."""
    rows = Job.objects.using(using).filter(finished_at__gte=begin, finished_at__lt=end).order_by("-finished_at")
    if most is not None:
        # SQLite compares texts: of two ways to write a moment the longer one is the later.
        for last in rows.values_list("finished_at", flat=True)[most - 1 : most]:
            rows = rows.filter(finished_at__gte=(last or begin) - datetime.timedelta(milliseconds=1))
    found: Counts = {}
    groups = rows.order_by().values_list(
        TruncMinute("finished_at", tzinfo=datetime.UTC), "task", "queue", "state", KeyTextTransform("type", "error"),
        _bucket("started_at", "finished_at"), _bucket("run_at", "started_at"),
    )  # fmt: skip
    for minute, task, queue, state, error, ran, waited, number in groups.annotate(number=models.Count("*")):
        error = str(error or "")[:200] if state != State.SUCCEEDED else ""
        row = _at(found, 60, minute, task, queue, state, error)
        row.count += number
        for histogram, bucket in ((row.ran, ran), (row.waited, waited)):
            if bucket is not None:
                key = str(int(bucket))
                histogram[key] = histogram.get(key, 0) + number
    return found


# Reading, for pages and metrics

MOST = 2000  #: At most this many ended jobs, the newest, are counted for a page: it takes 30 ms.

#: A named tuple, because model instances would take most of the page's time.
Row = namedtuple("Row", "begin task queue state error count ran waited")

#: Many histograms are equal, and decoding them took a third of the dashboard's time. A decoded one is never changed.
_histogram = lru_cache(10_000)(json.loads)


def of(stretch: datetime.timedelta, begin: datetime.datetime, **where: Any) -> list[Row]:
    """The counts of this length since then, of all job databases. For a thousand tasks: a thousand per minute."""
    return [Row._make(each) for each in _read(Row._fields[:-2], stretch, begin, where)]


def histograms(stretch: datetime.timedelta, begin: datetime.datetime, **where: Any) -> Iterator[list[Any]]:
    """The same without times, which are slow to read: the task, its count, and the histograms."""
    return _read(("task", "count"), stretch, begin, where)


def _read(
    names: Sequence[str], stretch: datetime.timedelta, begin: datetime.datetime, where: dict[str, Any]
) -> Iterator[list[Any]]:
    for rows in databases.each(Statistic.objects.filter(length=stretch.seconds, begin__gte=begin, **where)):
        texts = rows.annotate(rans=Cast("ran", TextField()), waits=Cast("waited", TextField()))
        for *values, ran, waited in texts.values_list(*names, "rans", "waits"):
            yield [*values, _histogram(ran), _histogram(waited)]


def failed(stretch: datetime.timedelta, begin: datetime.datetime) -> list[tuple[str, str, int, Any, Any]]:
    """Failures since then, by task and error: how many, and when the first and the last stretch with failures began."""
    rows = Statistic.objects.filter(length=stretch.seconds, begin__gte=begin, state=State.FAILED)
    sums = rows.values_list("task", "error").annotate(Sum("count"), Min("begin"), Max("begin"))
    return [each for found in databases.each(sums) for each in found]


def summed(stretch: datetime.timedelta, begin: datetime.datetime, *names: str, **where: Any) -> Counter[Any]:
    """How many jobs ended since then, by one column or by several; the database adds them up."""
    found = Counter[Any]()
    for rows in databases.each(Statistic.objects.filter(length=stretch.seconds, begin__gte=begin, **where)):
        for *key, number in rows.values_list(*names).annotate(number=Sum("count")):
            found[tuple(key) if len(key) > 1 else key[0]] += number
    return found


def uncounted() -> list[Row]:
    """Ended jobs that are not counted yet, by the minute (if there are very many, only the newest)."""
    now, found = timezone.now(), []
    for alias in conf().DATABASES:
        minutes = Statistic.objects.using(alias).filter(length=60, begin__gte=floor(now, MINUTE) - HOUR)
        last = minutes.aggregate(Max("begin"))["begin__max"]
        rest = ended(alias, last + MINUTE if last else floor(now, MINUTE) - HOUR, now + HOUR, MOST).values()
        found += [Row(*(getattr(each, name) for name in Row._fields)) for each in rest]
    return found


def of_failed(rest: list[Row], most: int) -> list[Row]:
    """The last hour by the minute, for the tasks that failed most in it.

    Parameters:
        rest: ended jobs that are not counted yet.
    """
    begin = floor(timezone.now(), MINUTE) - HOUR
    failed = summed(MINUTE, begin, "task", state=State.FAILED)
    failed += counts([row for row in rest if row.state == State.FAILED], "task")
    tasks = [task for task, _ in failed.most_common(most)]
    counted = of(MINUTE, begin, task__in=tasks) if tasks else []
    return counted + [row for row in rest if row.task in tasks]


def counts(rows: Iterable[Row], *names: str) -> Counter[Any]:
    """How many jobs ended, by one column or by several."""
    key, found = attrgetter(*names), Counter[Any]()
    for row in rows:
        found[key(row)] += row.count
    return found


def ever() -> dict[str, Counter[tuple[str, ...]]]:
    """Everything that was ever counted, by state: by task and queue, and for failures by error as well."""
    found: dict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
    for alias in conf().DATABASES:
        # The hours that are kept, and the sum of those before them (length 0).
        rows = Statistic.objects.using(alias).filter(length__in=(0, 3600))
        for *names, error, state, count in rows.values_list("task", "queue", "error", "state").annotate(Sum("count")):
            found[state][(*names, error) if state == State.FAILED else tuple(names)] += count
    return found


# Buckets

#: Seconds at which the first bucket ends, and the factor by which each next one ends later.
LEAST, STEP = 0.001, math.sqrt(2)
#: A value at most this much above the end of a bucket is still in it: logarithms are not exact.
NEARLY = 1e-9


def bucket(seconds: float) -> int:
    return 0 if seconds <= LEAST else math.ceil(math.log(seconds / LEAST) / math.log(STEP) - NEARLY)


def middle(number: int) -> float:
    """The middle of a bucket, in seconds."""
    return float(LEAST * STEP ** (number - 0.5))


def mean(histogram: Mapping[Any, int]) -> float | None:
    """The mean in seconds; None if the histogram is empty."""
    total = sum(histogram.values())
    return sum(middle(int(number)) * count for number, count in histogram.items()) / total if total else None


def percentile(histogram: Mapping[Any, int], part: float) -> float | None:
    """Seconds within which ``part`` (0.95) of all ended; None if it is empty. Also for a histogram read from JSON."""
    needed = part * sum(histogram.values())
    seen = 0
    for number in sorted(histogram, key=int):
        seen += histogram[number]
        if seen >= needed and seen:
            return middle(int(number))
    return None


def spent(seconds: float | None) -> str:
    """A duration for people, also below a second."""
    return f"{seconds * 1000:.0f} ms" if seconds is not None and seconds < 1 else duration(seconds)
