"""What it reads of ``settings.JOBS``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Settings:
    #: Options of a task, or of a call, that other code reads: ``["tenant"]``. An unknown option that is not listed
    #: here is taken for a typo, and raises.
    TASK_OPTIONS: Sequence[str] = ()


def problems(given: Any) -> list[str]:
    """What is wrong with ``settings.JOBS``: one sentence for each problem, with the cure."""
    from jobs.contrib.typos import unusable

    return unusable.problems(given)
