"""What it reads of ``settings.JOBS``."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    #: Whose schedule the workers run, without ``celery beat``: ``"code"``: Celery's ``beat_schedule``,
    #: ``add_periodic_task()`` and the tasks' ``every=``; ``"all"``: where django-celery-beat is installed that of its
    #: tables, too. None: nobody's.
    SCHEDULES: str | None = "all"


#: As those of ``jobs.conf``.
RULES = {
    "SCHEDULES": ("all|code", "'all' or 'code', or None, not {!r}"),
}
