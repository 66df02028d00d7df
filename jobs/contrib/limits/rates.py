"""Limits as people write them: how many jobs run at once, and how many start in a time. When the next job may start."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobs.contrib.limits.models import RateLimiter

#: The most slots that a limit may have.
MOST = 10_000
#: The number in a rate must be below this, for every unit of time.
TOO_HIGH = 1_000_000
#: The slowest rate: one start in this many seconds.
SLOWEST = 3650 * 86400
#: A claim may take the starts of this many seconds at once: at high rates, claims one by one would not keep up.
AT_ONCE = 0.05

_SECONDS = {"s": 1, "m": 60, "h": 3600}
#: The text that explains the form of a rate.
RATE = "a number and its time, such as '10/s', '100/m' or '5000/h'"


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit for the jobs of one task (or of one of its keys), or of one queue."""

    #: How many run at once; None: any number.
    slots: int | None = None
    #: The rate as it was written; None: no rate.
    rate: str | float | None = None
    #: The rate in numbers: how many may start at once, and how many seconds after the last start the next may follow.
    #: In any stretch of the rate's time, wherever it begins, no more jobs start than the rate's number.
    burst: int = 0
    pause: float = 0.0

    def since(self, limiter: RateLimiter | None, now: float) -> float:
        """The moment from which the next start is counted, in the database's time.

        A slower rate may have written the limiter: then its last start counts, with the pause of the present rate. Or
        the database's clock was put back since.
        """
        if limiter is None or limiter.last_at > now + 1:
            return now
        return max(now, min(limiter.next_at, min(limiter.last_at, now) + self.burst * self.pause))

    def opens_in(self, limiter: RateLimiter | None, now: float) -> float:
        """Seconds until the rate lets the next job start; 0: it may start now."""
        return max(0.0, self.since(limiter, now) - now - (self.burst - 1) * self.pause) if self.pause else 0.0

    def permits(self, limiter: RateLimiter | None, now: float) -> float:
        """How many jobs may start now by the rate."""
        if not self.pause:
            return inf
        ahead = self.since(limiter, now) - now
        return 0 if self.opens_in(limiter, now) else max(1, (self.burst * self.pause - ahead) // self.pause)


def limit_of(concurrency: Any = None, rate: Any = None) -> Limit | None:
    """The limit; None if neither is given. A rate of 0 means no rate, as in Celery; a bare number is per second.

    Raises:
        ValueError: says what is allowed.
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
