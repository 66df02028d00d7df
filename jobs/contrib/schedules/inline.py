"""The ticks in ``run_jobs(until=)``, where time passes without a clock."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.utils import timezone

from jobs.conf import is_ours
from jobs.contrib.schedules import entries, scheduler
from jobs.contrib.schedules.entries import Entry
from jobs.contrib.schedules.models import Schedule


def tick(app: Any, using: str, clock: Any) -> bool:
    """Make the jobs of the ticks that are due, and tell the clock of the next ones; whether any was due."""
    if clock.until is None or not clock.schedules:
        return False
    was_due = False
    for entry in _entries(app, using, clock.schedules):
        rows = Schedule.objects.using(using).filter(pk=entry.name, paused_at=None, next_tick__lte=clock.until)
        moment = rows.values_list("next_tick", flat=True).first()
        if moment is not None and clock.reaches(moment):
            scheduler.decide(entry, clock.at)
            was_due = True
    return was_due


def _entries(app: Any, using: str, only: Collection[str] | bool) -> list[Entry]:
    """The entries of this database, each with its row: all, or those with some names. Stock tasks are left out.

    Raises:
        ValueError: there is no entry with such a name.
    """
    found, wrong = entries.gather(app)
    names = found if isinstance(only, bool) else only
    if unknown := [name for name in names if name not in found]:
        raise ValueError(
            f"run_jobs(schedules=...): there is no entry {unknown[0]!r}; {'; '.join(wrong) or list(found)}"
        )
    known = (entry for entry in found.values() if entry.using == using and entry.name in names)
    ours = [entry for entry in known if is_ours(app.tasks.get(entry.task))]
    for entry in ours:
        now = timezone.now()
        row = Schedule.objects.using(using).filter(pk=entry.name).first()
        if row is None or row.definition != entry.definition:
            scheduler.define(entry, row, now, now)
    return ours
