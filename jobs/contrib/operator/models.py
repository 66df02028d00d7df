"""What is counted, and the dashboard's place in the admin."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobs.models import Job, State


class Overview(Job):
    """It has no rows: it gives the dashboard a place in the admin's index."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = _("dashboard")
        verbose_name_plural = _("dashboard")


class Statistic(models.Model):
    """How many jobs ended in a minute, an hour or six (``statistics.py``): what the dashboard reads."""

    id = models.BigAutoField(primary_key=True)
    #: Seconds: 60, 3600 or 21600; 0 for all that is older than the hours that are kept.
    length = models.PositiveIntegerField()
    begin = models.DateTimeField()
    task = models.CharField(max_length=255)
    queue = models.CharField(max_length=255)
    state = models.CharField(max_length=16, choices=State.choices)
    #: The class of the error; empty without one.
    error = models.CharField(max_length=200, default="")
    count = models.PositiveIntegerField()
    #: How many ran for how long, and had waited for how long, by buckets (``statistics.py``).
    ran = models.JSONField(default=dict)
    waited = models.JSONField(default=dict)

    class Meta:
        db_table = "jobs_statistic"
        constraints: ClassVar = [
            models.UniqueConstraint(
                name="jobs_statistic_unique", fields=["length", "begin", "task", "queue", "state", "error"]
            )
        ]
