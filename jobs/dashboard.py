"""What the dashboard shows, out of small tables only: live rows by their partial indexes, history by its tallies."""

from __future__ import annotations

import datetime
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import TextField
from django.db.models.functions import Cast
from django.utils import timezone

from jobs import census
from jobs.conf import conf
from jobs.fields import first_id, time_of
from jobs.histogram import added, percentile
from jobs.maintenance.tally import HOUR, MINUTE, QUARTER, floor, seconds
from jobs.models import Job, State, Tally

#: The percentiles that are shown.
PARTS = {"median": 0.5, "p95": 0.95, "p99": 0.99}

#: Minutes over which the rate of a queue is taken.
RATED = 10

SECOND = datetime.timedelta(seconds=1)

#: More series than that are shown as one.
SERIES = 8

#: Of the kinds of failures the most frequent are shown.
FAILURES = 50


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time that ends now, and the bars that it is shown in."""

    name: str
    #: The stretch of the tallies that it is made of.
    bar: datetime.timedelta
    bars: int

    def begin(self, now: datetime.datetime) -> datetime.datetime:
        return floor(now, self.bar) - (self.bars - 1) * self.bar


SPANS = {
    "hour": Span("hour", MINUTE, 60),
    "day": Span("day", HOUR, 24),
    "week": Span("week", QUARTER, 28),
}


@dataclass
class Chart:
    begins: list[datetime.datetime]
    #: For each series how many ended in each bar.
    series: dict[str, list[int]]

    @property
    def highest(self) -> int:
        return max((sum(values) for values in zip(*self.series.values(), strict=True)), default=0)


class Counted(NamedTuple):
    """Of a tally, what is read here; a model of each would take most of the page's time."""

    begin: datetime.datetime
    task: str
    queue: str
    state: str
    error: str
    jobs: int
    ran: dict[str, int]
    waited: dict[str, int]


class Dashboard:
    def __init__(self, span: str = "hour", by: str = "state") -> None:
        self.span = SPANS.get(span, SPANS["hour"])
        self.by = by if by in ("state", "task", "queue") else "state"
        self.found = census.gather(live=True)
        self.remarks = [text for _, text in census.remarks(self.found)]
        self.now = timezone.now()
        self.tallies = _tallies(self.span.bar, self.span.begin(self.now))

    def ended(self) -> dict[str, int]:
        total: Counter[str] = Counter(dict.fromkeys((State.SUCCEEDED, State.FAILED, State.CANCELLED), 0))
        for row in self.tallies:
            total[row.state] += row.jobs
        return {str(state): count for state, count in total.items()}

    def chart(self) -> Chart:
        begin, bar = self.span.begin(self.now), self.span.bar
        counts: dict[str, Counter[int]] = defaultdict(Counter)
        for row in self.tallies:
            counts[getattr(row, self.by)][(row.begin - begin) // bar] += row.jobs
        names = sorted(counts, key=lambda name: -counts[name].total())
        if self.by == "state":
            names = [state for state in ("succeeded", "cancelled", "failed") if state in counts]
        elif len(names) > SERIES:
            for name in names[SERIES - 1 :]:
                counts[""] += counts[name]
            names = [*names[: SERIES - 1], ""]
        series = {name: [counts[name][number] for number in range(self.span.bars)] for name in names}
        return Chart([begin + number * bar for number in range(self.span.bars)], series)

    def durations(self) -> list[dict[str, Any]]:
        """For each task, and for all: how long they ran and waited (seconds)."""
        groups: dict[str, list[Counted]] = defaultdict(list)
        for row in self.tallies:
            groups[row.task].append(row)
        found = [
            (task, sum(row.jobs for row in rows), added(row.ran for row in rows), added(row.waited for row in rows))
            for task, rows in groups.items()
        ]
        found.sort(key=lambda each: -each[1])
        whole = ("", sum(each[1] for each in found), added(each[2] for each in found), added(each[3] for each in found))
        return [_durations(*each) for each in (whole, *found)] if found else []

    def failures(self) -> list[dict[str, Any]]:
        groups: dict[tuple[str, str], list[Counted]] = defaultdict(list)
        for row in self.tallies:
            if row.state == State.FAILED:
                groups[row.task, row.error].append(row)
        found = [
            {
                "task": task,
                "error": error,
                "count": sum(row.jobs for row in rows),
                "first": min(row.begin for row in rows),
                "last": max(row.begin for row in rows),
            }
            for (task, error), rows in groups.items()
        ]
        return sorted(found, key=lambda each: -each["count"])

    def queues(self) -> list[dict[str, Any]]:
        """With their rates (jobs a minute), and how long it takes until all that is ready has run (seconds)."""
        entered = self._entered()
        left: Counter[str] = Counter()
        begin = floor(self.now, MINUTE) - RATED * MINUTE
        for row in self.tallies if self.span.bar == MINUTE else _tallies(MINUTE, begin):
            # Those that ran: what is cancelled while it waits is no work that is done.
            left[row.queue] += sum(row.ran.values()) if row.begin >= begin else 0
        found = []
        for name in sorted({*self.found["queues"], *left}):
            queue = self.found["queues"].get(name, {})
            rate_out = left[name] / RATED
            rate_in = entered[name]
            spare = rate_out - rate_in
            ready = queue.get("ready", 0)
            is_worked = queue.get("workers", 0) and not queue.get("paused")
            found.append(
                {
                    "name": name,
                    **{state: queue.get(state, 0) for state in ("scheduled", "ready", "running")},
                    "capped": queue.get("capped", False),
                    "oldest": queue.get("oldest_ready_seconds"),
                    "workers": queue.get("workers", 0),
                    "paused": queue.get("paused", False),
                    "in": rate_in,
                    "out": rate_out,
                    "drained": 60 * ready / spare if ready and spare > 0 and is_worked else None,
                }
            )
        return found

    def _entered(self) -> dict[str, float]:
        """Jobs a minute, of each queue; of very many calls the newest tell."""
        begin = self.now - RATED * MINUTE
        total: dict[str, float] = defaultdict(float)
        for alias in conf().DATABASES:
            rows = Job.objects.using(alias)
            own = rows.filter(pk__gte=first_id(begin), pk__lt=first_id(self.now + HOUR), made_at=None).order_by("-pk")
            for newest in (own, rows.filter(made_at__gte=begin).order_by("-made_at")):
                found = list(newest.values_list("queue", "pk", "made_at")[: census.MOST])
                since = begin
                if len(found) == census.MOST:
                    _, key, made_at = found[-1]
                    since = made_at or time_of(key) or begin
                passed = max(SECOND, self.now - since)
                for queue, count in Counter(queue for queue, _, _ in found).items():
                    total[queue] += count * MINUTE / passed
        return total


def _tallies(stretch: datetime.timedelta, begin: datetime.datetime) -> list[Counted]:
    return [row for alias in conf().DATABASES for row in _read(alias, seconds(stretch), begin)]


def _read(using: str, length: int, begin: datetime.datetime) -> Iterator[Counted]:
    """As texts, each moment parsed once and all histograms in one go: thousands of rows are few moments."""
    texts = [Cast(name, TextField()) for name in ("begin", "ran", "waited")]
    rows = Tally.objects.using(using).filter(length=length, begin__gte=begin)
    found = list(rows.values_list("task", "queue", "state", "error", "count", *texts))
    ran, waited = (json.loads(f"[{','.join(row[number] for row in found)}]") for number in (6, 7))
    moments = {text: _moment(text, using) for text in {row[5] for row in found}}
    for row, each_ran, each_waited in zip(found, ran, waited, strict=True):
        yield Counted._make((moments[row[5]], *row[:5], each_ran, each_waited))


def _moment(text: str, using: str) -> datetime.datetime:
    at = datetime.datetime.fromisoformat(text)
    return at if at.tzinfo else at.replace(tzinfo=connections[using].timezone)


def _durations(task: str, count: int, ran: dict[int, int], waited: dict[int, int]) -> dict[str, Any]:
    return {
        "task": task,
        "count": count,
        "ran": {name: percentile(ran, part) for name, part in PARTS.items()},
        "waited": {name: percentile(waited, part) for name, part in PARTS.items()},
    }
