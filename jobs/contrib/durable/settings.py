"""What it reads of ``settings.JOBS``."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    #: Signals that no durable task has taken are deleted after this time. None keeps them.
    RETENTION_SIGNALS: float | None = 30 * 86400.0
