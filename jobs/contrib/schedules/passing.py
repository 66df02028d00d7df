"""The ticks in ``run_jobs(until=)``, where time passes without a clock."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import Any

from django.utils import timezone

from jobs.conf import is_ours
from jobs.contrib.schedules import entries, scheduler
from jobs.contrib.schedules.entries import Entry
from jobs.contrib.schedules.models import Schedule


class Passing:
    """Lets entries have their ticks: all, or those of some names. Those of stock tasks are left out."""

    def __init__(self, app: Any, aliases: Sequence[str], only: Collection[str] | bool) -> None:
        found, wrong = entries.gather(app)
        names = found if isinstance(only, bool) else only
        if unknown := [name for name in names if name not in found]:
            raise ValueError(
                f"run_jobs(schedules=...): there is no entry {unknown[0]!r}; {'; '.join(wrong) or list(found)}"
            )
        known = (entry for entry in found.values() if entry.using in aliases and entry.name in names)
        self._entries = [entry for entry in known if is_ours(app.tasks.get(entry.task))]
        for entry in self._entries:
            now = timezone.now()
            row = Schedule.objects.using(entry.using).filter(pk=entry.name).first()
            if row is None or row.definition != entry.definition:
                scheduler.define(entry, row, now, now)

    def next(self, until: datetime) -> datetime | None:
        return min((tick for _, tick in self._due(until)), default=None)

    def make(self, at: datetime) -> None:
        for entry, _ in [*self._due(at)]:
            scheduler.decide(entry, at)

    def _due(self, until: datetime) -> Iterator[tuple[Entry, datetime]]:
        for entry in self._entries:
            rows = Schedule.objects.using(entry.using).filter(pk=entry.name, paused_at=None, next_tick__lte=until)
            if (tick := rows.values_list("next_tick", flat=True).first()) is not None:
                yield entry, tick
