"""What ended is counted once, by the minute, the hour and the quarter of a day, whoever counts and however often."""

from __future__ import annotations

import datetime
import math
from collections import Counter

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs.contrib.operations import by_hand
from jobs.contrib.operator import statistics
from jobs.contrib.operator.models import Statistic
from jobs.contrib.operator.statistics import (
    HOUR,
    LEAST,
    MINUTE,
    QUARTER,
    QUARTERS_KEPT,
    Count,
    bucket,
    floor,
    percentile,
)
from jobs.models import Job
from jobs.store import databases
from tests.helpers.harness import Worker
from tests.helpers.rows import ended, make, make_node
from tests.helpers.servers import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def counts(length: int) -> dict:
    rows = Statistic.objects.filter(length=length).order_by("begin", "state")
    return {(row.begin, row.state, row.error): row.count for row in rows}


def test_by_minute_and_by_hour():
    hour = floor(timezone.now() - 3 * HOUR, HOUR)
    ended(hour)
    ended(hour + 59 * datetime.timedelta(seconds=1))
    ended(hour + 30 * MINUTE)
    ended(hour + 30 * MINUTE, state="failed")
    ended(hour + HOUR, state="cancelled")
    make("ready")
    Count().run_once()
    assert counts(60) == {
        (hour, "succeeded", ""): 2,
        (hour + 30 * MINUTE, "failed", "ValueError"): 1,
        (hour + 30 * MINUTE, "succeeded", ""): 1,
        (hour + HOUR, "cancelled", "ValueError"): 1,
    }
    assert counts(3600) == {
        (hour, "failed", "ValueError"): 1,
        (hour, "succeeded", ""): 3,
        (hour + HOUR, "cancelled", "ValueError"): 1,
    }
    row = Statistic.objects.get(length=3600, begin=hour, state="succeeded")
    assert row.ran == {str(bucket(1.0)): 3}
    assert row.waited == {str(bucket(2.0)): 3}


def test_hours_are_added_up_to_quarters_of_days():
    quarter = floor(timezone.now() - 8 * HOUR, QUARTER)
    for hours in (0, 1, 6):
        ended(quarter + hours * HOUR)
    Statistic.objects.create(length=21600, begin=quarter - QUARTERS_KEPT, task="t", queue="q", state="failed", count=1)
    Count().run_once()
    begins = {quarter: 2, quarter + QUARTER: 1}
    assert counts(21600) == {(begin, "succeeded", ""): count for begin, count in begins.items()}
    assert Statistic.objects.get(length=21600, begin=quarter).ran == {str(bucket(1.0)): 2}


def test_again_and_by_another_it_comes_to_the_same():
    ended(timezone.now() - 5 * MINUTE)
    first, second = Count(), Count()
    first.run_once()
    before = (counts(60), counts(3600), counts(21600))
    for each in (second, first, Count()):
        each._done.clear()
        each.run_once()
    assert (counts(60), counts(3600), counts(21600)) == before
    # A commit that came late.
    at = floor(databases.clock("default"), MINUTE) - MINUTE
    ended(at)
    first._done["default"] = at + MINUTE
    later = Count()
    later._done["default"] = at
    later.run_once()
    assert (at, "succeeded", "") in counts(60)


def test_what_was_counted_stays_counted():
    """A counter that shrinks passes for one that began anew, and its rate would be all that ever was."""
    at = floor(databases.clock("default"), MINUTE) - MINUTE
    retried, pruned, kept = (ended(at, state="failed") for _ in range(3))
    count = Count()
    count.run_once()
    by_hand.retry_by_hand(retried.pk, "default")
    pruned.delete()
    ended(at)
    count._done["default"] = at
    count.run_once()
    assert counts(60) == {(at, "failed", "ValueError"): 3, (at, "succeeded", ""): 1}
    assert sum(counts(3600).values()) == 4
    assert Job.objects.filter(pk=kept.pk).exists()


def test_a_minute_is_counted_once_unless_more_ended_in_it(monkeypatch):
    now = databases.clock("default")
    end = floor(now, MINUTE)
    monkeypatch.setattr(databases, "clock", lambda using: now)
    ended(end - 2 * MINUTE)
    counted, count_ = [], statistics.count
    monkeypatch.setattr(statistics, "count", lambda *given: counted.append(given[1]) or count_(*given))
    count = Count()
    count.run_once()
    for begin in (end - MINUTE, end - 2 * MINUTE):
        del counted[:]
        count._done["default"] = end - MINUTE
        count.run_once()
        assert counted[0] == begin
        if begin == end - MINUTE:
            ended(end - 2 * MINUTE)
    assert sum(counts(60).values()) == sum(counts(3600).values()) == sum(counts(21600).values()) == 2


def test_two_that_count_the_same_minute_count_it_once(monkeypatch):
    """Race: the other one has counted it since this one has read the jobs."""
    at = floor(databases.clock("default"), MINUTE) - MINUTE
    ended(at)
    read = statistics.ended

    def slowly(*given):
        found = read(*given)
        monkeypatch.setattr(statistics, "ended", read)
        assert statistics.count("default", at, at + MINUTE) == 1
        return found

    monkeypatch.setattr(statistics, "ended", slowly)
    assert statistics.count("default", at, at + MINUTE) == 0
    assert sum(counts(3600).values()) == 1


def test_the_database_adds_up_what_ended():
    at = floor(databases.clock("default"), MINUTE) - MINUTE
    for seconds in (0.0005, 0.001, 0.5, 1.0, 59.0):
        ended(at, ran=seconds, waited=60 - seconds)
    make("cancelled", finished_at=at, started_at=None)
    with CaptureQueriesContext(connection) as queries:
        found = statistics.ended("default", at, at + MINUTE)
    assert len(queries) == 1
    assert "GROUP BY" in queries[0]["sql"]
    [row] = [row for row in found.values() if row.state == "succeeded"]
    assert row.ran == Counter(str(bucket(seconds)) for seconds in (0.0005, 0.001, 0.5, 1.0, 59.0))
    assert row.waited == Counter(str(bucket(60 - seconds)) for seconds in (0.0005, 0.001, 0.5, 1.0, 59.0))
    assert [row.ran for row in found.values() if row.state == "cancelled"] == [{}], "it never began"


def test_this_minute_is_not_over():
    ended(floor(timezone.now(), MINUTE) + MINUTE)
    Count().run_once()
    assert counts(60) == {}


def test_the_oldest_worker_counts(monkeypatch):
    monkeypatch.setattr(statistics, "LONGEST_COUNT", math.inf)
    ended(timezone.now() - 5 * MINUTE)
    old = make_node(started_at=timezone.now() - HOUR)
    young = make_node()
    assert Count(lambda: young.pk).run_once() == {"jobs": 0}
    assert Count(lambda: old.pk).run_once() == {"jobs": 1}


def test_a_slow_count_gives_way_and_comes_to_its_end(monkeypatch):
    """However long each hour takes, the next count goes on behind it, and what is old still goes."""
    monkeypatch.setattr(statistics, "LONGEST_COUNT", -1.0)
    node = make_node()
    hour = floor(timezone.now(), HOUR)
    for hours in range(1, 25):
        ended(hour - hours * HOUR + MINUTE)
    Statistic.objects.create(length=60, begin=hour - 90 * HOUR, task="t", queue="q", state="failed", error="", count=1)
    count = Count(lambda: node.pk)
    counted = [count.run_once()["jobs"] for _ in range(30)]
    assert max(counted) <= 2, "an hour, and the minutes before it, at a time"
    assert sum(counts(3600).values()) == 24
    assert not Statistic.objects.filter(length=60, begin__lt=hour - 80 * HOUR).exists()


def test_old_ones_go():
    now = floor(timezone.now(), HOUR)
    for length, age in ((60, 2), (60, 30), (3600, 30), (3600, 24 * 32)):
        Statistic.objects.create(
            length=length, begin=now - age * HOUR, task="t", queue="q", state="failed", error=str(age), count=1
        )
    count = Count()
    count._done["default"] = floor(timezone.now(), MINUTE) - MINUTE
    count.run_once()
    assert sorted(Statistic.objects.values_list("length", "error")) == [
        # What is older than all that is kept is in one sum.
        (0, "768"),
        (60, "2"),
        (3600, "30"),
    ]


def test_a_worker_counts_by_itself():
    job = ended(timezone.now() - 5 * MINUTE)
    with Worker():
        wait_for(lambda: Statistic.objects.filter(length=60, task=job.task).exists(), 40, "it is counted")


def test_percentiles():
    spread = Counter(str(bucket(seconds)) for seconds in [0.01] * 90 + [1.0] * 9 + [60.0])
    for part, seconds in ((0.5, 0.01), (0.95, 1.0), (0.99, 1.0), (1.0, 60.0)):
        assert percentile(spread, part) == pytest.approx(seconds, rel=0.2)
    assert percentile({}, 0.5) is None
    assert bucket(0.0) == bucket(LEAST) == 0
    assert percentile({bucket(LEAST): 1}, 1.0) <= LEAST
