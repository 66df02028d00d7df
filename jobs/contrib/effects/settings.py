"""What it reads of ``settings.JOBS``."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    #: How long the answer to an external call (``effect()``) is kept, if the job that made it is gone. After that the
    #: call may be made again: choose longer than any job may ask for it. Calls that may or may not have happened stay.
    #: None keeps all.
    RETENTION_EFFECTS: float | None = 365 * 86400.0
