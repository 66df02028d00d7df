"""The moments when an entry of the schedule is due: each is computed from the one before, and not from a clock."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from copy import copy
from typing import Any, NamedTuple

from celery import Celery
from celery.schedules import BaseSchedule, crontab, maybe_schedule, schedule
from celery.utils.time import remaining

#: A tick is in time for this long. Ticks that are not older get one job each; of older ticks only the last one may be
#: made up for.
IN_TIME = datetime.timedelta(seconds=30)

#: Clocks are put forward, or back, by less than this.
GAP = datetime.timedelta(hours=3)

#: The shortest interval: all ticks that are in time get their jobs in one transaction.
SHORTEST = datetime.timedelta(milliseconds=10)

#: The longest interval: the ticks of a longer one would leave the calendar.
LONGEST = datetime.timedelta(days=36_525)

#: Missed ticks are counted up to this number.
MOST = 10_000

#: The types of an entry's ``schedule``, or of a task's ``every=``; a bool is not accepted as a number.
SCHEDULES = (int, float, datetime.timedelta, BaseSchedule)

_UNITS = (("d", 86400), ("h", 3600), ("min", 60))


class Due(NamedTuple):
    #: How many ticks are too old to be in time, and the last of them (None: none is).
    missed: int
    last_missed: datetime.datetime | None
    #: The ticks that are in time, the oldest first.
    in_time: list[datetime.datetime]
    #: The first tick still to come; None: there is none.
    next: datetime.datetime | None

    @property
    def last(self) -> datetime.datetime | None:
        return self.in_time[-1] if self.in_time else self.last_missed


class Ticks:
    """The ticks of one of Celery's schedules. Their texts (``str``) differ if the ticks do.

    Parameters:
        given: seconds, a timedelta, or a schedule of Celery's; its own ``nowfun`` is not called.
        relative: as in Celery's interval schedules: rounded to their unit.
        begins, ends: all ticks are at or after ``begins``, and before ``ends``.

    Raises:
        TypeError, ValueError: no ticks can be computed from it; says why.
    """

    def __init__(self, given: Any, app: Celery, relative: bool = False, begins: Any = None, ends: Any = None) -> None:
        is_schedule = isinstance(given, SCHEDULES) and not isinstance(given, bool)
        found: Any = maybe_schedule(given, relative, app=app) if is_schedule else None
        if found is None or type(found).remaining_estimate is BaseSchedule.remaining_estimate:
            raise TypeError(f"{given!r} must be seconds, a timedelta, a crontab, or another schedule of Celery's")
        is_interval = isinstance(found, schedule)
        if is_interval and found.run_every < SHORTEST:
            raise ValueError(f"an interval must be 10 ms at the least, not {given!r}")
        if is_interval and found.run_every > LONGEST:
            raise ValueError(f"an interval must be a hundred years at the most, not {given!r}")
        #: The moment that the schedule uses as now.
        self._at = datetime.datetime.now(datetime.UTC)
        self._schedule = copy(found)
        self._schedule.app, self._schedule.nowfun = app, lambda: self._at
        #: The length of a plain interval, whose ticks need no calendar.
        self.every: datetime.timedelta | None = found.run_every if is_interval and not found.relative else None
        self._begins, self._ends = begins, ends

    def __str__(self) -> str:
        """For people, in a crontab's own order: minute, hour, day of month, month, day of week."""
        found = self._schedule
        if isinstance(found, crontab):
            fields = crontab.__repr__(found).removeprefix("<crontab: ").partition(" (m/")[0]
            text = f"{re.sub('[^-0-9a-z*/, ]', '', fields).replace(', ', ',')} ({found.tz})"
        elif isinstance(found, schedule):
            seconds = found.run_every.total_seconds()
            unit, size = next(((unit, size) for unit, size in _UNITS if seconds % size == 0), ("s", 1))
            text = f"every {seconds / size:g} {unit}{' (rounded)' if found.relative else ''}"
        else:
            text = repr(found).strip("<>")
        bounds = ((" from", self._begins), (" until", self._ends))
        return text + "".join(f"{word} {bound:%Y-%m-%d %H:%M:%S%z}" for word, bound in bounds if bound)

    def after(self, at: datetime.datetime) -> datetime.datetime | None:
        """The first tick after the moment; None: there is none."""
        if self._begins is not None and at < self._begins:
            at = self._begins - datetime.timedelta(microseconds=1)
            tick = self._begins if isinstance(self._schedule, schedule) else self._next(at)
        else:
            tick = self._next(at)
        return tick if tick > at and (self._ends is None or tick < self._ends) else None

    def due(self, since: datetime.datetime, now: datetime.datetime) -> Due:
        """The ticks between the last decided one and now."""
        missed, last = 0, None
        old, in_time = now - IN_TIME, list[datetime.datetime]()
        if self.every is not None:
            # There may be very many, such as all seconds of a week.
            if self._begins is not None and since < self._begins:
                since = self._begins - self.every
            until = old if self._ends is None else min(old, self._ends - datetime.timedelta.resolution)
            if since + self.every <= until:
                missed = (until - since) // self.every
                last = since = since + missed * self.every
        tick = self.after(since)
        while tick is not None and tick <= now:
            if tick > old:
                in_time.append(tick)
            else:
                missed, last = missed + 1, tick
            if missed == MOST and not in_time:
                last = tick = self._last(tick, old)
            tick = self.after(tick)
        return Due(missed, last, in_time, tick)

    def _last(self, since: datetime.datetime, until: datetime.datetime) -> datetime.datetime:
        """The last tick of those from the tick ``since`` to a moment after it: it looks back further and further."""
        back, at = IN_TIME, until
        while at > since and ((tick := self.after(at)) is None or tick > until):
            at, back = max(since, until - back), 2 * back
        while (tick := self.after(at)) is not None and tick <= until:
            at = tick
        return at

    def _next(self, at: datetime.datetime) -> datetime.datetime:
        if self.every is not None:
            return at + self.every
        tick = self._estimate(at)
        if isinstance(self._schedule, crontab):
            later = at
            while tick <= at and later < at + GAP:
                # In an hour that comes twice, Celery returns ticks of the first pass again: go on until it is over.
                later += datetime.timedelta(minutes=1)
                tick = self._estimate(later)
            if len(self._schedule.hour) == 24:
                # A tick that is due in every hour is due in both passes.
                tick = min([tick, *self._in_second_hour(self._schedule, at, tick)])
            else:
                tick = min([tick, *self._in_gap(self._schedule, at, tick)])
        return tick.astimezone(datetime.UTC)

    def _estimate(self, at: datetime.datetime) -> datetime.datetime:
        self._at = at
        return at + self._schedule.remaining_estimate(at)

    def _in_gap(self, found: crontab, at: datetime.datetime, until: datetime.datetime) -> Iterator[datetime.datetime]:
        """Ticks at times that do not exist because clocks are put forward: they come as if the clocks had not been."""
        self._at = at
        offsets = {each.astimezone(found.tz).utcoffset() for each in (at - GAP, at, until)}
        for offset in offsets if len(offsets) > 1 else ():
            zone = datetime.timezone(offset or datetime.timedelta())
            tick = at + remaining(*found.remaining_delta(at, tz=zone))
            wall = tick.astimezone(zone).replace(tzinfo=found.tz)
            exists = wall.astimezone(datetime.UTC).astimezone(found.tz) == wall
            # By the clock before the change.
            if tick > at and not exists and tick.astimezone(found.tz).utcoffset() != offset == wall.utcoffset():
                yield tick

    def _in_second_hour(self, found: crontab, at: datetime.datetime, until: datetime.datetime) -> Iterator[Any]:
        """Ticks in an hour that comes twice: by the clock before or after the change, if they are ticks there."""
        for offset in {each.astimezone(found.tz).utcoffset() for each in (at, until)}:
            zone, tick = datetime.timezone(offset or datetime.timedelta()), at
            while tick < until:
                self._at = tick
                tick += remaining(*found.remaining_delta(tick, tz=zone))
                there = tick.astimezone(found.tz)
                fits = (
                    there.minute in found.minute
                    and there.day in found.day_of_month
                    and there.month in found.month_of_year
                    and there.isoweekday() % 7 in found.day_of_week
                )
                if fits:
                    yield tick
                    break
