"""What it reads of ``settings.JOBS``."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    #: On PostgreSQL ``migrate`` divides the table of jobs: what ended is in a partition of its day, and goes with it in
    #: one DROP. For millions of jobs a day; no foreign key of a project's own table may point at a job then.
    HISTORY_BY_DAY: bool = False
