"""A limit as people write it: how many jobs run at once, and how many start in a time. When the next one may start."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobs.contrib.limits.models import RateLimiter

#: Slots that a limit may have.
MOST = 10_000
#: The number of a rate is below this, whatever its time.
TOO_HIGH = 1_000_000
#: The slowest rate: one start in so many seconds.
SLOWEST = 3650 * 86400
#: Seconds whose starts a claim may take at once: where a rate is so high that claims one by one would not keep up.
AT_ONCE = 0.05

_SECONDS = {"s": 1, "m": 60, "h": 3600}
#: How to say what a rate is.
RATE = "a number and its time, such as '10/s', '100/m' or '5000/h'"


@dataclass(frozen=True, slots=True)
class Limit:
    """What holds for the jobs of one task (or of one key of it), or of one queue."""

    #: How many run at once; None: any number.
    slots: int | None = None
    #: As it was written; None: as many as there are.
    rate: str | float | None = None
    #: What the rate comes to: so many start at once, and so many seconds after the last one the next may. In no stretch
    #: of the rate's time more than its number start, wherever that stretch begins.
    burst: int = 0
    pause: float = 0.0

    def since(self, limiter: RateLimiter | None, now: float) -> float:
        """From when on the next start is counted, in the database's time.

        The limiter may stem from a slower rate: then its last start counts, and the pause of the rate that holds now.
        Or the database's clock was put back since.
        """
        if limiter is None or limiter.last_at > now + 1:
            return now
        return max(now, min(limiter.next_at, min(limiter.last_at, now) + self.burst * self.pause))

    def opens_in(self, limiter: RateLimiter | None, now: float) -> float:
        """Seconds until the rate lets the next one start; 0: it does now."""
        return max(0.0, self.since(limiter, now) - now - (self.burst - 1) * self.pause) if self.pause else 0.0

    def permits(self, limiter: RateLimiter | None, now: float) -> float:
        """How many the rate lets start now."""
        if not self.pause:
            return inf
        ahead = self.since(limiter, now) - now
        return 0 if self.opens_in(limiter, now) else max(1, (self.burst * self.pause - ahead) // self.pause)


def limit_of(concurrency: Any = None, rate: Any = None) -> Limit | None:
    """The limit, if it is one. A rate of 0 is none, as Celery has it; a number without a time is of a second.

    Raises:
        ValueError: says what it has to be.
    """
    if concurrency is not None and (type(concurrency) is not int or not 1 <= concurrency <= MOST):
        raise ValueError(f"concurrency={concurrency!r} must be a whole number from 1 to {MOST}")
    burst, pause = _pace(rate)
    return Limit(concurrency, rate if pause else None, burst, pause) if pause or concurrency else None


def _pace(rate: Any) -> tuple[int, float]:
    number, _, unit = str(0 if rate is None else rate).partition("/")
    try:
        count, seconds = float(number), _SECONDS[unit or "s"]
    except (KeyError, ValueError):
        count, seconds = -1.0, 1
    if isinstance(rate, bool) or not 0 <= count < TOO_HIGH or 0 < count < seconds / SLOWEST:
        most = f", and less than {TOO_HIGH}" if count >= TOO_HIGH else ""
        raise ValueError(f"rate={rate!r} must be {RATE}{most}")
    if not count:
        return 0, 0.0
    burst = max(1, int(AT_ONCE * count / seconds))
    return burst, seconds / (count - (burst - 1))
