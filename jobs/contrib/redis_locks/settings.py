"""Its key of ``settings.JOBS``."""

from dataclasses import dataclass

RULES = {"LOCK_CACHE": (".*", "the alias of a cache, or None, not {!r}")}


@dataclass(frozen=True)
class Settings:
    #: The cache alias whose Redis (django-redis) holds the locks. If that cache is not such a Redis, or does not exist,
    #: or with None, the database holds them.
    LOCK_CACHE: str | None = "default"
