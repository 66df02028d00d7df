"""What it reads of ``settings.JOBS``."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    #: What becomes of a mail, an HTTP request, a cache write or a call of a stock task inside of an open transaction,
    #: which may roll back: ``"raise"`` (in tests), ``"warn"`` (Python's warnings), or None: nothing. The same of what a
    #: durable task does outside of its steps, also a write or a call: that happens again at each wake.
    ISOLATION: str | None = None
    #: What of that is all right: ``"mail"``, ``"http"``, ``"cache"``, ``"celery"``; of durable tasks ``"database"`` and
    #: ``"call"``; or names of tasks in whose bodies all of it is; ``"shop.*"`` matches a prefix.
    ISOLATION_ALLOW: Sequence[str] = ()


#: As those of ``jobs.conf``.
RULES = {
    "ISOLATION": ("raise|warn", "'raise' or 'warn', or None, not {!r}"),
}
