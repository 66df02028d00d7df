"""How long jobs ran and waited, in buckets, which can be added up.

Each ends 1.41 times as late as the one before, so what is read out of them is at most a fifth off. As JSON has no
numbers for keys, a bucket's number may be a text.
"""

import math
from collections.abc import Mapping
from typing import Any

#: Seconds at which the first bucket ends, and by how much each ends later than the one before.
LEAST, STEP = 0.001, math.sqrt(2)


def bucket(seconds: float) -> int:
    return 0 if seconds <= LEAST else math.ceil(round(math.log(seconds / LEAST, STEP), 9))


def middle(number: int) -> float:
    """The middle of a bucket, in seconds."""
    return float(LEAST * STEP ** (number - 0.5))


def mean(histogram: Mapping[Any, int]) -> float | None:
    """The mean in seconds; None of nothing."""
    total = sum(histogram.values())
    return sum(middle(int(number)) * count for number, count in histogram.items()) / total if total else None


def percentile(histogram: Mapping[Any, int], part: float) -> float | None:
    """Seconds within which ``part`` of all (0.95) ended; None of nothing. Also of a histogram as JSON has it."""
    needed = part * sum(histogram.values())
    seen = 0
    for number in sorted(histogram, key=int):
        seen += histogram[number]
        if seen >= needed and seen:
            return middle(int(number))
    return None
