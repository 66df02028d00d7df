"""What it reads of ``settings.JOBS``."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    #: Names of tags whose values become labels of a metric: ``["tenant"]``. Only tags with few values, so not a user.
    TAG_METRICS: Sequence[str] = ()
