"""What it reads of ``settings.JOBS``."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    #: A scraper of ``jobs.urls``' metrics without a login sends ``Authorization: Bearer`` and this. None: none may.
    METRICS_TOKEN: str | None = None


#: What the values must be (see ``jobs/extensions.py``).
RULES = {
    "METRICS_TOKEN": (".+", "a text that is hard to guess, or None"),
}
