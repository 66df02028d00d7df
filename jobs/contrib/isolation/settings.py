"""What it reads of ``settings.JOBS``."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    #: What to do about a mail, an HTTP request, a cache write or a call of a stock task inside of an open transaction,
    #: which may roll back: ``"raise"`` (in tests), ``"warn"`` (Python's warnings), or None: nothing. The same for what
    #: a durable task does outside of its steps, also for writes and calls: they happen again at each wake.
    ISOLATION: str | None = None
    #: What is allowed: ``"mail"``, ``"http"``, ``"cache"``, ``"celery"``; for durable tasks ``"database"`` and
    #: ``"call"``; or names of tasks whose bodies may do all of it; ``"shop.*"`` matches a prefix.
    ISOLATION_ALLOW: Sequence[str] = ()


#: What the values must be (see ``jobs/extensions.py``).
RULES = {
    "ISOLATION": ("raise|warn", "'raise' or 'warn', or None, not {!r}"),
}
