"""Durations, as text for people."""

from django.utils.formats import number_format


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{_short(seconds / size)} {unit}"
    return f"{_short(seconds)} s"


def _short(value: float) -> str:
    return str(number_format(value, 1 if value < 10 else 0))
