"""Stock ``celery beat`` beside workers that run the schedule: it decides the same ticks, so no job is made twice."""

from __future__ import annotations

from typing import Any

from django.db.models.functions import Now

from jobs.conf import conf
from jobs.conf.logs import logger
from jobs.contrib.schedules.models import Schedule
from jobs.contrib.schedules.scheduler import GONE, Schedules
from jobs.lifecycle.transitions import now_plus


class Beside:
    """Stands in for ``Scheduler.apply_async``, which makes the call of an entry."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler, self._original = scheduler, scheduler.apply_async
        self._schedules = Schedules(scheduler.app)
        self._is_told = False

    def __call__(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        if conf().SCHEDULES is None:
            return self._original(entry, *args, **kwargs)
        # As a worker does: make the jobs of ticks that are due and not decided yet.
        self._schedules.run_once()
        for alias in conf().DATABASES:
            rows = Schedule.objects.using(alias).filter(pk=entry.name, seen_at__gt=now_plus(-GONE))
            if rows.update(beat_at=Now()):
                return self._leave(entry, rows.get(), **kwargs)
        return self._original(entry, *args, **kwargs)

    def _leave(self, entry: Any, row: Schedule, advance: bool = True, **kwargs: Any) -> Any:
        if not self._is_told:
            self._is_told = True
            text = "celery beat is not needed: the workers run its schedule, and it makes no jobs of its own"
            logger.warning(text, extra={"action": "beat_beside"})
        if advance:
            self._scheduler.reserve(entry)
        return self._scheduler.app.AsyncResult(str(row.last_job)) if row.last_job else None
