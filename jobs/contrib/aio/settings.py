"""What it reads of ``settings.JOBS``."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    #: How many ``async def`` bodies a process runs at once, beside a plain one. None of them holds a connection while
    #: it awaits.
    ASYNC_CONCURRENCY: int = 100
