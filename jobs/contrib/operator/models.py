"""The counts, the orders to workers, and the dashboard's place in the admin."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobs.models import Job, State


class Overview(Job):
    """It has no rows of its own: it gives the dashboard a place in the admin's index."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = _("dashboard")
        verbose_name_plural = _("dashboard")


class Statistic(models.Model):
    """How many jobs ended in a minute, an hour or six (``statistics.py``): what the dashboard reads."""

    id = models.BigAutoField(primary_key=True)
    #: Seconds: 60, 3600 or 21600; 0 for the sum of everything older than the kept hours.
    length = models.PositiveIntegerField()
    begin = models.DateTimeField()
    task = models.CharField(max_length=255)
    queue = models.CharField(max_length=255)
    state = models.CharField(max_length=16, choices=State.choices)
    #: The class of the error; empty without one.
    error = models.CharField(max_length=200, default="")
    count = models.PositiveIntegerField()
    #: How many jobs ran for how long, and had waited for how long, by buckets (``statistics.py``).
    ran = models.JSONField(default=dict)
    waited = models.JSONField(default=dict)

    class Meta:
        db_table = "jobs_statistic"
        constraints: ClassVar = [
            models.UniqueConstraint(
                name="jobs_statistic_unique", fields=["length", "begin", "task", "queue", "state", "error"]
            )
        ]


class Order(models.Model):
    """An order to a node (``orders.py``)."""

    #: On SQLite it lives in the second file (``databases.SideDatabase``).
    is_beside = True

    #: The job to kill; or the node itself, if it is told to be quiet, to claim again, or to stop.
    id = models.UUIDField(primary_key=True)
    node = models.UUIDField()
    what = models.CharField(max_length=8)
    #: The lease of the run to kill.
    lease = models.IntegerField(null=True)
    #: The order in words: what, who gave it, and why.
    text = models.TextField(default="")
    #: Seconds since 1970 by the database's clock.
    at = models.FloatField(default=0)

    class Meta:
        db_table = "jobs_order"
