"""What it reads of ``settings.JOBS``."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    #: Which schedule the workers run, without ``celery beat``. ``"code"``: Celery's ``beat_schedule``,
    #: ``add_periodic_task()`` and the tasks' ``every=``; ``"all"``: also that of django-celery-beat's tables, if it is
    #: installed. None: no schedule.
    SCHEDULES: str | None = "all"


#: What the values must be (see ``jobs/extensions.py``).
RULES = {
    "SCHEDULES": ("all|code", "'all' or 'code', or None, not {!r}"),
}
