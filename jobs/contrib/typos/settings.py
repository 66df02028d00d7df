"""What it reads of ``settings.JOBS``."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    #: Options of a task, or of a call, that other code reads: ``["tenant"]``. An unknown option that is not listed
    #: here is taken for a typo, and raises.
    TASK_OPTIONS: Sequence[str] = ()
