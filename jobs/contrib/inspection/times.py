"""Moments and durations, for people."""

import datetime

from django.utils import timezone
from django.utils.formats import number_format


def local(at: datetime.datetime) -> datetime.datetime:
    """A moment in the reader's time zone; one at the edge of the calendar, where that has none, as it is."""
    try:
        return timezone.localtime(at)
    except OverflowError:
        return at


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{_short(seconds / size)} {unit}"
    return f"{_short(seconds)} s"


def _short(value: float) -> str:
    return str(number_format(value, 1 if value < 10 else 0))
