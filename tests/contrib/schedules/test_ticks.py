"""The moments at which entries of the schedule are due."""

from __future__ import annotations

import datetime
from zoneinfo import ZoneInfo, available_timezones

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule, solar

from jobs.contrib.schedules.ticks import IN_TIME, MOST, Ticks

BERLIN = ZoneInfo("Europe/Berlin")
SECOND, HOUR = datetime.timedelta(seconds=1), datetime.timedelta(hours=1)


@pytest.fixture
def app():
    app = Celery("there", set_as_current=False)
    app.conf.timezone = "Europe/Berlin"
    return app


def utc(*moment: int) -> datetime.datetime:
    return datetime.datetime(*moment, tzinfo=datetime.UTC)


def some(ticks: Ticks, at: datetime.datetime, number: int) -> list[str]:
    """The next ticks, as the clocks of Berlin show them."""
    found = []
    for _ in range(number):
        at = ticks.after(at)
        found.append(f"{at.astimezone(BERLIN):%d. %H:%M %z}")
    return found


def test_ticks_of_an_interval_do_not_drift(app):
    ticks = Ticks(datetime.timedelta(seconds=0.1), app)
    at = utc(2026, 1, 1)
    for _ in range(1000):
        at = ticks.after(at)
    assert at == utc(2026, 1, 1, 0, 1, 40)


def test_a_time_that_does_not_exist_comes_an_hour_later(app):
    nightly = Ticks(crontab(hour=2, minute=30), app)
    # On 29 March 2026 the clocks go from 02:00 to 03:00.
    assert some(nightly, utc(2026, 3, 27, 12), 3) == ["28. 02:30 +0100", "29. 03:30 +0200", "30. 02:30 +0200"]


def test_a_time_that_comes_twice_is_due_once(app):
    nightly = Ticks(crontab(hour=2, minute=30), app)
    # On 25 October 2026 the clocks go from 03:00 back to 02:00.
    assert some(nightly, utc(2026, 10, 23, 12), 3) == ["24. 02:30 +0200", "25. 02:30 +0200", "26. 02:30 +0100"]


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (utc(2026, 3, 28, 23, 59), ["29. 01:00 +0100", "29. 01:30 +0100", "29. 03:00 +0200", "29. 03:30 +0200"]),
        (
            utc(2026, 10, 24, 23, 59),
            ["25. 02:00 +0200", "25. 02:30 +0200", "25. 02:00 +0100", "25. 02:30 +0100", "25. 03:00 +0100"],
        ),
    ],
    ids=["spring", "autumn"],
)
def test_what_is_due_in_every_hour_is_due_in_those_that_come_twice(app, at, expected):
    half_hourly = Ticks(crontab(minute="*/30"), app)
    assert some(half_hourly, at, len(expected)) == expected


def test_days_are_those_of_the_place(app):
    sundays = Ticks(crontab(minute=0, day_of_week="sun"), app)
    # The last hour of the longest Sunday of the year, and the first one of the next.
    assert some(sundays, utc(2026, 10, 25, 21, 30), 2) == ["25. 23:00 +0100", "01. 00:00 +0100"]


def test_the_sun_is_a_schedule(app):
    pytest.importorskip("ephem")
    ticks = Ticks(solar("sunrise", 52.5, 13.4), app)
    first = ticks.after(utc(2026, 6, 1, 12))
    assert first.astimezone(BERLIN).hour in (4, 5)
    assert 23 < (ticks.after(first) - first) / (3600 * SECOND) < 25


def test_a_rounded_interval_is_one(app):
    hourly = Ticks(3600, app, relative=True)
    assert hourly.after(utc(2026, 1, 1, 12, 34)) == utc(2026, 1, 1, 13)
    assert "(rounded)" in str(hourly)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (10, "every 10 s"),
        (0.5, "every 0.5 s"),
        (datetime.timedelta(minutes=90), "every 90 min"),
        (schedule(7200), "every 2 h"),
        (crontab("*/5", "0,12"), "*/5 0,12 * * * (Europe/Berlin)"),
        (crontab(0, {3, 1}, day_of_month="1"), "0 1,3 1 * * (Europe/Berlin)"),
    ],
)
def test_a_schedule_says_when(app, given, says):
    assert str(Ticks(given, app)) == says


@pytest.mark.parametrize("given", [None, "hourly", True, 0, -1, datetime.timedelta(), BaseSchedule()])
def test_what_is_no_schedule_is_refused(app, given):
    with pytest.raises((TypeError, ValueError)):
        Ticks(given, app)


def test_bounds(app):
    begins, ends = utc(2026, 1, 1, 12, 0, 5), utc(2026, 1, 1, 12, 0, 25)
    ticks = Ticks(10, app, begins=begins, ends=ends)
    assert ticks.after(utc(2025, 1, 1)) == begins
    assert ticks.after(begins) == begins + 10 * SECOND
    assert ticks.after(begins + 10 * SECOND) is None
    noon = Ticks(crontab(0, 12), app, begins=begins)
    assert noon.after(utc(2025, 1, 1)) == utc(2026, 1, 2, 11)


@pytest.mark.parametrize("given", [1, schedule(1, relative=True)], ids=["plain", "computed one by one"])
def test_due_ticks_are_in_time_or_missed(app, given):
    ticks, since = Ticks(given, app), utc(2026, 1, 1)
    now = since + 100.5 * SECOND
    due = ticks.due(since, now)
    assert (due.missed, due.last_missed) == (70, since + 70 * SECOND)
    assert due.in_time == [since + number * SECOND for number in range(71, 101)]
    assert (due.last, due.next) == (since + 100 * SECOND, since + 101 * SECOND)
    assert now - due.in_time[0] < IN_TIME <= now - due.last_missed
    assert ticks.due(due.last, now) == (0, None, [], due.next)


def test_a_clock_that_went_back_brings_no_tick_again(app):
    ticks, since = Ticks(1, app), utc(2026, 1, 1)
    assert ticks.due(since, since - 3600 * SECOND) == (0, None, [], since + SECOND)


def test_years_of_absence_are_counted_fast(app):
    since, now = utc(2016, 1, 1), utc(2026, 1, 1, 0, 0, 7)
    due = Ticks(crontab(), app).due(since, now)
    assert (due.missed, due.in_time, due.next) == (MOST, [utc(2026, 1, 1)], utc(2026, 1, 1, 0, 1))
    assert Ticks(1, app).due(since, now).missed > 300_000_000


@pytest.mark.parametrize(
    ("zone", "given", "begins", "ticks"),
    [
        ("Europe/Berlin", crontab(hour=2, minute="0,30"), utc(2026, 3, 28, 12), ["29 01:00", "29 01:30", "30 00:00"]),
        (
            "America/New_York",
            crontab(hour="*/2", minute="*/30"),
            utc(2026, 3, 8, 5, 30),
            ["08 07:00", "08 07:30", "08 08:00", "08 08:30", "08 10:00"],
        ),
    ],
)
def test_all_times_that_do_not_exist_are_due_an_hour_later(app, zone, given, begins, ticks):
    app.conf.timezone = zone
    entry, at, found = Ticks(given, app), begins, []
    while len(found) < len(ticks):
        at = entry.after(at)
        found.append(f"{at:%d %H:%M}")
    assert found == ticks


def changes(zone: ZoneInfo) -> list[tuple[datetime.datetime, datetime.timedelta | None]]:
    """The days of a year before which the clocks of a zone were put forward or back, and how much they differ then."""
    days = [utc(2026, 1, 1) + number * 24 * HOUR for number in range(366)]
    offsets = [each.astimezone(zone).utcoffset() for each in days]
    return [(at, now) for at, now, before in zip(days[1:], offsets[1:], offsets, strict=False) if now != before]


def test_a_tick_always_follows_in_every_zone():
    """In Antarctica/Troll clocks are put back by two hours."""
    zones = {tuple(changes(ZoneInfo(name))): name for name in sorted(available_timezones() - {"localtime"})}
    assert "Antarctica/Troll" in zones.values()
    assert len(zones) > 10, "most share their rules with others"
    for rules, name in zones.items():
        app = Celery("there", set_as_current=False, timezone=name)
        for given in (crontab(minute="*/15"), crontab(minute=10, hour="0-4"), crontab(minute=30, hour=2)):
            ticks = Ticks(given, app)
            for day, _ in rules:
                at = day - 24 * HOUR
                while at < day + 4 * HOUR:
                    following = ticks.after(at)
                    assert (following or at) > at, (name, str(ticks), at)
                    at = following


def test_hours_that_come_twice_are_skipped_the_second_time_and_no_longer(app):
    app.conf.timezone = "Antarctica/Troll"
    ticks = Ticks(crontab(minute="10,30", hour="0-4"), app)
    # On 25 October 2026 the clocks go from 03:00 back to 01:00. This is 01:20 for the second time, and 02:20.
    assert ticks.after(utc(2026, 10, 25, 1, 20)) == ticks.after(utc(2026, 10, 25, 2, 20)) == utc(2026, 10, 25, 3, 10)


def test_every_minute_goes_on_where_clocks_are_put_back_by_two_hours(app):
    app.conf.timezone = "Antarctica/Troll"
    ticks, at = Ticks(crontab(), app), utc(2026, 10, 24, 22)
    for _ in range(360):
        following = ticks.after(at)
        assert following == at + 60 * SECOND
        at = following


@pytest.mark.parametrize(
    "given", [crontab(), crontab(minute="0-4"), crontab(hour="0-11")], ids=["minutes", "hours", "half days"]
)
def test_the_last_of_very_many_missed_ticks_is_the_last(app, given):
    ticks, now = Ticks(given, app), utc(2026, 1, 31, 18, 30, 30)
    due = ticks.due(utc(2024, 1, 1), now)
    assert (due.missed, due.in_time) == (MOST, [])
    assert ticks.after(due.last_missed) == due.next > now
    assert ticks.due(due.last, now) == (0, None, [], due.next)


def test_the_ticks_of_an_interval_with_bounds_stay_on_its_grid(app):
    begins, end = utc(2026, 1, 1), utc(2026, 2, 1)
    bounded, now = Ticks(60, app, begins=begins, ends=end), utc(2026, 1, 24, 0, 0, 47)
    assert bounded.due(begins - HOUR, now) == Ticks(60, app).due(begins - 60 * SECOND, now)
    after_its_end = bounded.due(begins, end + HOUR)
    assert (after_its_end.last, after_its_end.next) == (end - 60 * SECOND, None)
    assert after_its_end.missed == 31 * 24 * 60 - 1


@pytest.mark.parametrize(("minute", "expected"), [("*/20", "14:40 15:10 15:30"), ("30", "14:30 15:00 16:00")])
def test_what_is_due_in_every_hour_is_due_where_half_an_hour_comes_twice(app, minute, expected):
    app.conf.timezone = "Australia/Lord_Howe"
    ticks, at, found = Ticks(crontab(minute=minute), app), utc(2026, 4, 4, 14, 25), []
    # On 5 April 2026 its clocks go from 02:00, 15:00 UTC, back to 01:30.
    for _ in range(3):
        at = ticks.after(at)
        found.append(f"{at:%H:%M}")
    assert " ".join(found) == expected
