"""The limits set by hand, and the state of each limit."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from jobs.models.fields import Completed


class Limit(Completed):
    """A limit that a person set. It wins over the settings and the code (``limits.py``)."""

    #: A task's name, or ``@`` and a queue's name.
    name = models.CharField(_("name"), primary_key=True, max_length=300)
    #: None: as the settings or the code say.
    concurrency = models.PositiveSmallIntegerField(_("at once"), null=True)
    rate = models.CharField(_("rate"), max_length=32, null=True)
    at = models.DateTimeField(_("set at"), default=Now)
    by = models.CharField(_("set by"), max_length=150, default="")
    reason = models.TextField(_("reason"), default="")

    class Meta:
        db_table = "jobs_limit"
        verbose_name = _("limit")
        verbose_name_plural = _("limits")
        permissions: ClassVar = [("set_limit", _("Can set and remove limits"))]

    def __str__(self) -> str:
        return self.name


class RateLimiter(Completed):
    """The state of one limit: when its rate lets the next job start, and whether it holds jobs back.

    Times are seconds since 1970 by the database's clock.
    """

    #: As ``Job.limit_key``; for a queue ``@`` and its name.
    key = models.CharField(primary_key=True, max_length=300)
    #: The moments from which the last start and the next one count. The rate says how far apart they are.
    last_at = models.FloatField(default=0, db_default=0)
    next_at = models.FloatField(default=0, db_default=0)
    #: When a worker next looks whether a job that is held back can be let in; None: no job is held back.
    look_at = models.FloatField(null=True)
    #: While jobs are held: none of them stands before this place (in ``ORDER``). None: the place is not known.
    held_rank = models.SmallIntegerField(null=True)
    held_from = models.DateTimeField(null=True)
    held_id = models.UUIDField(null=True)

    class Meta:
        db_table = "jobs_rate_limiter"
        indexes: ClassVar = [
            models.Index(name="jobs_rate_limiter_look", fields=["look_at"], condition=Q(look_at__isnull=False)),
            models.Index(name="jobs_rate_limiter_next", fields=["next_at"]),
        ]
