"""What it reads of ``settings.JOBS``."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    #: Who scrapes ``jobs.urls``' metrics without being logged in says ``Authorization: Bearer`` and this. None: nobody.
    METRICS_TOKEN: str | None = None


#: As those of ``jobs.conf``.
RULES = {
    "METRICS_TOKEN": (".+", "text that nobody guesses, or None"),
}
