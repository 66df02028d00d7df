"""What it reads of ``settings.JOBS``."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    #: Jobs that ended ``succeeded`` or ``cancelled`` are deleted after this time; None keeps them. With
    #: ``HISTORY_BY_DAY``, if this is three days or more, all jobs of a day are deleted together, up to a day later.
    RETENTION: float | None = 7 * 86400.0
    #: Jobs that ended ``failed`` are deleted after this time; None keeps them.
    RETENTION_FAILED: float | None = 30 * 86400.0
    #: How often finished jobs are pruned, for at most 2 s. If that was not enough, it continues after a second.
    PRUNE_INTERVAL: float = 60.0
