"""What it reads of ``settings.JOBS``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Settings:
    #: Seconds before each further attempt of a job that failed for a reason that may pass: a network, a mail server, a
    #: service or another database was away. It holds for tasks without own options for retries (``autoretry_for``,
    #: ``max_retries``, ...). Each pause varies by a quarter; all together are about a day. None: one attempt.
    RETRY: Sequence[float] | None = (10, 30, 60, 120, 300, 600, 1200, 2400, 4800, 10_800, 21_600, 43_200)


def _are_times(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_time, value))


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e11


#: What the values must be (see ``jobs/extensions.py``).
RULES = {
    "RETRY": (_are_times, "a list of times above 0 (in seconds, or timedeltas), or None, not {!r}"),
}
