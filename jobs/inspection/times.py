"""How long, for people."""

from django.utils.formats import number_format


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{number_format(seconds / size, 1)} {unit}"
    return f"{number_format(seconds, 1)} s"
