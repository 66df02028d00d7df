"""The tables of django-celery-beat as entries of the schedule, where that is installed."""

from __future__ import annotations

import datetime
import json
from typing import Any

from celery import Celery
from django.apps import apps
from django.db.models import F

from jobs.calling.entry import Entry
from jobs.calling.ticks import Ticks


def _model(name: str) -> Any:
    return apps.get_model("django_celery_beat", name)


class PeriodicEntry(Entry):
    """A row of ``PeriodicTask``."""

    def __init__(self, app: Celery, row: Any) -> None:
        names = ("queue", "exchange", "routing_key", "priority")
        options = {name: value for name in names if (value := getattr(row, name)) is not None}
        # ``expires`` of the row ends the entry; that of its jobs are its seconds.
        if row.expire_seconds is not None:
            options["expires"] = row.expire_seconds
        if headers := json.loads(row.headers or "{}"):
            options["headers"] = headers
        given = {"task": row.task, "args": json.loads(row.args or "[]"), "kwargs": json.loads(row.kwargs or "{}")}
        ticks = Ticks(row.schedule, app, begins=row.start_time, ends=row.expires)
        super().__init__(app, row.name, {**given, "options": options}, ticks)
        self.is_one_off = row.one_off
        self._row = row

    @property
    def definition(self) -> str:
        # What was edited, or enabled again, begins anew.
        return f"{self._row.date_changed:%Y%m%d%H%M%S%f}{super().definition}"

    def is_newer_than(self, definition: str) -> bool:
        when, other = self.definition[:20], definition[:20]
        return other.isdigit() and when > other

    def note_run(self, tick: datetime.datetime, number: int) -> None:
        # Without a signal: nobody need read them all again for it.
        rows = _model("PeriodicTask").objects.filter(pk=self._row.pk)
        rows.update(last_run_at=tick, total_run_count=F("total_run_count") + number)
        if self.is_one_off:
            rows.update(enabled=False, total_run_count=0)


def merge(app: Celery, found: dict[str, Entry], wrong: list[str]) -> None:
    """Add the rows to the entries of the code; of one name the row counts, also when it is disabled."""
    for row in _model("PeriodicTask").objects.select_related("interval", "crontab", "solar", "clocked"):
        found.pop(row.name, None)
        if not row.enabled:
            continue
        try:
            found[row.name] = PeriodicEntry(app, row)
        except Exception as exc:
            wrong.append(f"{row.name!r}: {exc}")


def last_change() -> datetime.datetime | None:
    """When a row was edited, made or deleted."""
    changed: datetime.datetime | None = _model("PeriodicTasks").last_change()
    return changed
