"""The figures of the dashboard, read from little data: live rows by their partial indexes, history by its counts."""

import datetime
from bisect import bisect
from collections import Counter, defaultdict, namedtuple
from collections.abc import Iterable
from functools import cached_property
from itertools import accumulate, product
from typing import Any

from django.db.models import Min
from django.utils import timezone

from jobs.conf import conf
from jobs.contrib.inspection import counts
from jobs.contrib.operator import problems, statistics, status
from jobs.contrib.operator.statistics import HOUR, MINUTE, QUARTER, floor, middle, percentile
from jobs.models import ENDED, HELD, Job, Node, State
from jobs.models.fields import first_id, time_of
from jobs.store import databases

PARTS = {"median": 0.5, "p95": 0.95, "p99": 0.99}  #: The percentiles that are shown.
RATED = 10  #: Over how many minutes the rate of a queue is measured.
SERIES = 8  #: The most series in a chart: the rarest are shown as one.
FAILURES = 50  #: How many kinds of failures are shown, the most frequent ones.
QUEUES = 200  #: How many queues are shown, those first in which jobs wait or run.
TASKS = 50  #: For how many tasks their durations are shown, the most frequent ones.

#: A time span that ends now: the length of one bar, which is that of its counts, and how many bars there are.
Span = namedtuple("Span", "name bar bars")
SPANS = {each.name: each for each in (Span("hour", MINUTE, 60), Span("day", HOUR, 24), Span("week", QUARTER, 28))}

SPIKE = 4  #: A bar this many times as high as nearly all others is cut, because the other bars would be unreadable.

#: ``top``: the number of jobs at the chart's full height; ``cut``: the counts of higher bars, by the bar's number.
Chart = namedtuple("Chart", "begins series highest top cut")


def chart_of(begins: list[datetime.datetime], series: dict[str, list[int]]) -> Chart:
    bars = [sum(counts) for counts in zip(*series.values(), strict=True)]
    highest = max(bars, default=0)
    # The highest bar, leaving out the highest twentieth of all bars.
    usual = sorted(bars)[-1 - len(bars) // 20] if bars else 0
    top = round(usual * 1.25) if 0 < usual * SPIKE < highest else highest
    return Chart(begins, series, highest, top, {place: n for place, n in enumerate(bars) if n > top})


def begins_of(span: Span, now: datetime.datetime) -> list[datetime.datetime]:
    """When each bar begins."""
    last = floor(now, span.bar)
    return [last - number * span.bar for number in reversed(range(span.bars))]


def by_error(failures: Iterable[Any], rows: Iterable[Any]) -> list[dict[str, Any]]:
    """Failures (``statistics.failed``), and those in ``rows``, by task and error, the most frequent ones first."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    more = [(row.task, row.error, row.count, row.begin, row.begin) for row in rows if row.state == State.FAILED]
    for task, error, count, first, last in (*failures, *more):
        kind = {"task": task, "error": error, "count": 0, "first": first, "last": last}
        each = found.setdefault((task, error), kind)
        each["count"] += count
        each["first"], each["last"] = min(each["first"], first), max(each["last"], last)
    return sorted(found.values(), key=lambda each: (-each["count"], each["task"], each["error"]))


class Course:
    """What became of the jobs of one task or one queue, over a time span.

    Parameters:
        which: ``task`` or ``queue``, and its name.
    """

    def __init__(self, span: str, **which: str) -> None:
        self.span = SPANS.get(span, SPANS["hour"])
        self.which = which
        self.now = timezone.now()
        self.begins = begins_of(self.span, self.now)
        own = [row for row in statistics.uncounted() if all(getattr(row, name) == which[name] for name in which)]
        self.rows = statistics.of(self.span.bar, self.begins[0], **which)
        self.rows += [row._replace(begin=floor(row.begin, self.span.bar)) for row in own]

    def chart(self) -> Chart:
        counted = statistics.counts(self.rows, "state", "begin")
        there = {state for state, _ in counted}
        names = [state for state in ("succeeded", "cancelled", "failed") if state in there]
        return chart_of(self.begins, {name: [counted[name, begin] for begin in self.begins] for name in names})

    def times(self, what: str, part: float) -> list[float | None]:
        """For each bar, the seconds within which that part of its jobs ``ran`` or ``waited``."""
        return [percentile(each, part) for each in self._spent(what)]

    def waiting(self) -> list[float]:
        """How many jobs waited in each bar, on average.

        Ended jobs count for as long as they had waited, and waiting jobs from the moment since which they wait. Of the
        latter :data:`counts.MOST` are read.
        """
        seconds = self.span.bar.total_seconds()
        began: Counter[int] = Counter()
        held = Job.objects.filter(HELD).order_by("queue", "id")
        for line in (counts.in_line(), held):
            for rows in databases.each(line.filter(**self.which).values_list("run_at", flat=True)):
                began.update(bisect(self.begins, at) for at in rows[: counts.MOST])
        found = [*map(float, accumulate(began[number] for number in range(len(self.begins) + 1)))][1:]
        for last, each in enumerate(self._spent("waited")):
            for number, count in each.items():
                left = middle(number)
                for bar in reversed(range(last + 1)):
                    found[bar] += count * min(left, seconds) / seconds
                    left = max(0.0, left - seconds)
        return found

    def _spent(self, what: str) -> list[Counter[Any]]:
        found: dict[Any, Counter[Any]] = defaultdict(Counter)
        for row in self.rows:
            found[row.begin].update({int(number): count for number, count in getattr(row, what).items()})
        return [found[begin] for begin in self.begins]

    def deploys(self) -> list[tuple[datetime.datetime, str]]:
        """When the first worker of each version started, for the versions that first started in this time span."""
        nodes = Node.objects.using(databases.home()).exclude(version="").values_list("version")
        first = dict(nodes.annotate(first=Min("started_at")))
        return sorted((at, version) for version, at in first.items() if at >= self.begins[0])


class Dashboard:
    def __init__(self, span: str = "hour", by: str = "state") -> None:
        self.span = SPANS.get(span, SPANS["hour"])
        self.by = by if by in ("state", "task", "queue") else "state"
        self.found = status.gather(live=True)
        self.running = status.running_now()
        self.now = timezone.now()
        self.begins = begins_of(self.span, self.now)
        #: Ended jobs that are not counted yet: by the minute, and by the bar.
        self.rest = statistics.uncounted()
        # Where nobody counts, they reach back a minute further than the first bar.
        own = [row for row in self.rest if row.begin >= self.begins[0]]
        self.last = [row._replace(begin=floor(row.begin, self.span.bar)) for row in own]
        self.rates = self._rates()
        self.problems = problems.of(self.found | {"rates": self.rates, "rest": self.rest}, self.running)

    def _counts(self, *names: str, **where: Any) -> Counter[Any]:
        """How many jobs ended in the span, by columns. ``where`` does not filter jobs that are not counted yet."""
        counted = statistics.summed(self.span.bar, self.begins[0], *names, **where)
        return counted + statistics.counts(self.last, *names)

    @cached_property
    def _states(self) -> Counter[Any]:
        return self._counts("state", "begin")

    @cached_property
    def _tasks(self) -> list[str]:
        """The tasks, the most frequent ones first."""
        return [task for task, _ in self._counts("task").most_common()]

    def ended(self) -> dict[str, int]:
        found = {str(state): 0 for state in ENDED}
        for (state, _), count in self._states.items():
            found[state] += count
        return found

    def chart(self) -> Chart:
        """How many jobs ended in each bar, by series."""
        counts, is_long = self._states, False
        names = [state for state, count in self.ended().items() if count]
        names.sort(key=["succeeded", "cancelled", "failed"].index)
        if self.by != "state":
            names = self._tasks if self.by == "task" else [name for name, _ in self._counts(self.by).most_common()]
            is_long = len(names) > SERIES
            names = names[: SERIES - 1] if is_long else names
            counts = self._counts(self.by, "begin", **{f"{self.by}__in": names})
        series = {name: [counts[name, begin] for begin in self.begins] for name in names}
        if is_long:
            every = [sum(self._states[state, begin] for state in ENDED) for begin in self.begins]
            series[""] = [number - sum(counts) for number, *counts in zip(every, *series.values(), strict=True)]
        return chart_of(self.begins, series)

    def durations(self) -> list[dict[str, Any]]:
        """How long jobs ran and waited (seconds), by task, for the most frequent tasks; first a row for all tasks."""
        found: dict[str, dict[str, Any]] = {}

        def add(task: str, count: int, ran: Any, waited: Any) -> None:
            each = found.setdefault(task, {"task": task, "count": 0, "ran": Counter(), "waited": Counter()})
            each["count"] += count
            each["ran"].update(ran)
            each["waited"].update(waited)

        names = set(self._tasks[:TASKS])
        for counted in statistics.histograms(self.span.bar, self.begins[0], task__in=names):
            add(*counted)
        for row in self.last:
            if row.task in names:
                add(row.task, row.count, row.ran, row.waited)
        for each in [*found.values()]:
            # The row for all tasks has no name.
            add("", each["count"], each["ran"], each["waited"])
        tasks = sorted(found.values(), key=lambda each: (each["task"] != "", -each["count"]))
        for each, name in product(tasks, ("ran", "waited")):
            each[name] = {label: percentile(each[name], part) for label, part in PARTS.items()}
        return tasks

    def failures(self) -> list[dict[str, Any]]:
        return by_error(statistics.failed(self.span.bar, self.begins[0]), self.last)

    def queues(self) -> list[dict[str, Any]]:
        """The queues, with their rates (jobs a minute), and the time until all ready jobs have run (seconds)."""
        found = []
        for name, (enters, leaves) in sorted(self.rates.items()):
            queue, drained = self.found["queues"].get(name, status.IDLE), None
            if queue["ready"] and queue["workers"] and not queue["paused"] and leaves > enters:
                drained = 60 * queue["ready"] / (leaves - enters)
            rates = {"in": enters, "out": leaves, "drained": drained}
            found.append({"name": name, **queue, "oldest": queue["oldest_ready_seconds"], **rates})
        return found

    def _rates(self) -> dict[str, tuple[float, float]]:
        """Jobs a minute, into each queue and out of it."""
        entered = self._entered()
        end = floor(self.now, MINUTE)
        begin = end - RATED * MINUTE
        left: Counter[str] = Counter()
        counted = statistics.summed(MINUTE, end - HOUR, "queue", "state", "begin")
        # A cancelled job was mostly no work: it was waiting.
        for (queue, state, at), count in (counted + statistics.counts(self.rest, "queue", "state", "begin")).items():
            left[queue] += count if begin <= at < end and state != State.CANCELLED else 0
        return {name: (entered[name], left[name] / RATED) for name in {*self.found["queues"], *left}}

    def _entered(self) -> dict[str, float]:
        """Jobs a minute into each queue; if there were very many, measured by the newest ones."""
        begin = self.now - RATED * MINUTE
        total: dict[str, float] = defaultdict(float)
        for alias in conf().DATABASES:
            rows = Job.objects.using(alias)
            own = rows.filter(pk__gte=first_id(begin), pk__lt=first_id(self.now + HOUR), made_at=None).order_by("-pk")
            for newest in (own, rows.filter(made_at__gte=begin).order_by("-made_at")):
                found = list(newest.values_list("queue", "pk", "made_at")[: counts.MOST])
                since = begin
                if len(found) == counts.MOST:
                    _, key, made_at = found[-1]
                    since = made_at or time_of(key) or begin
                passed = max(datetime.timedelta(seconds=1), self.now - since)
                for queue, count in Counter(queue for queue, _, _ in found).items():
                    total[queue] += count * MINUTE / passed
        return total
