"""What was set by hand, and the state of each limit."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from jobs.models.fields import Completed


class Limit(Completed):
    """A limit that somebody set by hand. It wins over the settings and the code (``limits.py``)."""

    #: A task's name, or ``@`` and that of a queue.
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
    """The state of one limit: when its rate lets the next job in, and whether jobs are held back at it.

    Times are seconds since 1970 by the database's clock.
    """

    #: As ``Job.limit_key``; of a queue ``@`` and its name.
    key = models.CharField(primary_key=True, max_length=300)
    #: The moment that the last start counts from, and the next one's. The rate says how far apart they are.
    last_at = models.FloatField(default=0, db_default=0)
    next_at = models.FloatField(default=0, db_default=0)
    #: When somebody looks whether one of the jobs that are held back can be let in; None: none is held back.
    look_at = models.FloatField(null=True)
    #: While some are held: none of them stands before this place, as ``ORDER``. None: it is not known.
    held_rank = models.SmallIntegerField(null=True)
    held_from = models.DateTimeField(null=True)
    held_id = models.UUIDField(null=True)

    class Meta:
        db_table = "jobs_rate_limiter"
        indexes: ClassVar = [
            models.Index(name="jobs_rate_limiter_look", fields=["look_at"], condition=Q(look_at__isnull=False)),
            models.Index(name="jobs_rate_limiter_next", fields=["next_at"]),
        ]
