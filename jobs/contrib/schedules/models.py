"""The state of each entry of the schedule."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _


class Schedule(models.Model):
    """The state of an entry of the schedule (``scheduler.py``). The code says what it calls, and when."""

    name = models.CharField(_("name"), primary_key=True, max_length=255)
    task = models.CharField(_("task"), max_length=255)
    #: The times as text, for people.
    timing = models.TextField(_("when"))
    #: ``Entry.definition`` of the entry in force; empty: the next worker that defines the entry begins anew.
    definition = models.CharField(max_length=100, default="")
    #: When the worker that wrote this definition began. The newest worker's definition is in force.
    defined_at = models.DateTimeField()
    #: When a worker with this definition last looked; it may be half a minute late.
    seen_at = models.DateTimeField(_("seen at"), default=Now)
    #: All ticks up to this one have their jobs, or were skipped. It only grows.
    last_tick = models.DateTimeField(_("last tick"))
    #: None: there is no further tick.
    next_tick = models.DateTimeField(_("next run"), null=True)
    #: The last tick that made a job, and that job.
    last_run = models.DateTimeField(_("last run"), null=True)
    last_job = models.UUIDField(_("last job"), null=True)
    #: How many ticks got no job in time, and the last such tick.
    missed = models.PositiveIntegerField(_("missed ticks"), default=0)
    missed_at = models.DateTimeField(_("last missed tick"), null=True)
    #: Why the last tick's job could not be made.
    error = models.TextField(_("error"), default="")
    paused_at = models.DateTimeField(_("paused at"), null=True)
    paused_by = models.CharField(_("paused by"), max_length=150, default="")
    reason = models.TextField(_("reason"), default="")
    #: When ``celery beat``, running beside the workers, last wanted to call the entry.
    beat_at = models.DateTimeField(_("called by celery beat"), null=True)

    class Meta:
        db_table = "jobs_schedule"
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        permissions: ClassVar = [("operate_schedule", _("Can pause, resume and run schedules"))]

    def __str__(self) -> str:
        return self.name
