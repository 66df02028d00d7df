"""How durations are spread, in few numbers that can be added up.

Each bucket ends 1.41 times as late as the one before, so what is read out of them is at most a fifth off.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

#: Seconds at which the first bucket ends.
LEAST = 0.001

#: By how much the end of a bucket is later than that of the one before.
STEP = math.sqrt(2)


def bucket(seconds: float) -> int:
    return 0 if seconds <= LEAST else math.ceil(round(math.log(seconds / LEAST, STEP), 9))


def middle(number: int) -> float:
    """Seconds that stand for a bucket."""
    return LEAST * STEP**number / math.sqrt(STEP)


def added(histograms: Iterable[Mapping[Any, int]]) -> dict[int, int]:
    """One out of several, also as they come out of JSON."""
    total: dict[Any, int] = defaultdict(int)
    for each in histograms:
        for number, count in each.items():
            total[number] += count
    numbers: dict[int, int] = defaultdict(int)
    for number, count in total.items():
        numbers[int(number)] += count
    return dict(numbers)


def percentile(histogram: Mapping[int, int], part: float) -> float | None:
    """Seconds within which ``part`` of all (0.95) ended; None of nothing."""
    needed = part * sum(histogram.values())
    seen = 0
    for number in sorted(histogram):
        seen += histogram[number]
        if seen >= needed and seen:
            return middle(number)
    return None
