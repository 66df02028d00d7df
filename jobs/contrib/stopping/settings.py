"""What it reads of ``settings.JOBS``."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    #: After SIGTERM a worker waits this long for the bodies that run. Then their jobs are handed back (which counts
    #: as no loss), their processes are killed, and the worker ends. Set it a little below the time after which your
    #: process manager kills (systemd's TimeoutStopSec, Kubernetes' terminationGracePeriodSeconds). None waits as long
    #: as the bodies need.
    STOP_TIMEOUT: float | None = None
