"""Goals for our own figures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from benchmarks.samples import Samples


@dataclass(frozen=True, kw_only=True)
class Goal:
    """``key`` of ``peer`` has to be at most, or at least, so much, or so many times that of ``against``."""

    figure: str
    key: str
    says: str
    peer: str = "jobs"
    #: The best of them counts.
    against: tuple[str, ...] = ()
    #: The key of ``against``, if it has another name.
    against_key: str = ""
    most: float | None = None
    least: float | None = None
    #: The limit is the difference of both, and not their ratio.
    is_difference: bool = False
    unit: str = "x"

    def verdict(self, samples: Samples) -> Verdict:
        mine = samples.rounds(self.figure, self.peer, self.key)
        if not self.against:
            return Verdict(self, list(mine.values()))
        key = self.against_key or self.key
        others = {name: found for name in self.against if (found := samples.rounds(self.figure, name, key))}
        if not others:
            return Verdict(self, [])
        best = min if self.most is not None else max
        other = others[best(others, key=lambda name: median(others[name].values()))]
        both = sorted(mine.keys() & other.keys())
        if self.is_difference:
            return Verdict(self, [mine[each] - other[each] for each in both])
        return Verdict(self, [mine[each] / other[each] for each in both if other[each] > 0])


@dataclass(frozen=True)
class Verdict:
    goal: Goal
    #: One value of each round: values of different rounds are not compared.
    values: list[float]

    @property
    def value(self) -> float | None:
        return median(self.values) if self.values else None

    @property
    def limit(self) -> float:
        limit = self.goal.most if self.goal.most is not None else self.goal.least
        assert limit is not None
        return limit

    @property
    def is_met(self) -> bool | None:
        """None: it was not measured."""
        if self.value is None or math.isnan(self.value):
            return None
        return self.value <= self.limit if self.goal.most is not None else self.value >= self.limit

    @property
    def margin(self) -> str:
        """By how much it is met or missed."""
        if self.is_met is None or self.value is None:
            return "not measured"
        word = "met" if self.is_met else "missed"
        if self.goal.is_difference:
            return f"{word} by {abs(self.value - self.limit):.1f} {self.goal.unit}"
        return f"{word} by {100 * abs(self.value - self.limit) / self.limit:.0f} %"

    @property
    def sign(self) -> str:
        return "≤" if self.goal.most is not None else "≥"
