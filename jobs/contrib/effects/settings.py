"""What it reads of ``settings.JOBS``."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    #: How long the answer to an external call (``effect()``) is kept, if the job that made it is gone. The call may be
    #: made again then: longer than anybody may ask for it. Calls of which nobody knows whether they happened stay. None
    #: keeps all.
    RETENTION_EFFECTS: float | None = 365 * 86400.0
