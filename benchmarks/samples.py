"""What each round measured, by figure, peer and key."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median


@dataclass(frozen=True)
class Spread:
    middle: float
    least: float
    most: float
    rounds: int


@dataclass
class Samples:
    _values: dict[tuple[str, str, str], dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    #: The errors of a peer at a figure, one for each time.
    errors: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, figure: str, peer: str, number: int, values: dict[str, float | None]) -> None:
        for key, value in values.items():
            if value is not None:
                self._values[figure, peer, key][number] = value

    def fail(self, figure: str, peer: str, error: str) -> None:
        self.errors[figure, peer].append(error)

    def rounds(self, figure: str, peer: str, key: str) -> dict[int, float]:
        return self._values.get((figure, peer, key), {})

    def spread(self, figure: str, peer: str, key: str) -> Spread | None:
        values = list(self.rounds(figure, peer, key).values())
        return Spread(median(values), min(values), max(values), len(values)) if values else None

    def peers(self, figure: str) -> list[str]:
        """The peers that have values or errors, in the order in which they came."""
        found = [peer for name, peer, _ in self._values if name == figure]
        return list(dict.fromkeys([*found, *(peer for name, peer in self.errors if name == figure)]))
