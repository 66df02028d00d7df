"""What it reads of ``settings.JOBS``."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    #: Names of tags whose values become labels of a metric: ``["tenant"]``. Few values each: a user is none.
    TAG_METRICS: Sequence[str] = ()
