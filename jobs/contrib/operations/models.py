"""The table of what people did."""

from typing import ClassVar

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _


class Action(models.Model):
    """What a person did to a job."""

    id = models.BigAutoField(primary_key=True)
    job = models.UUIDField(_("job"))
    at = models.DateTimeField(_("at"), default=Now)
    #: A verb: ``retry``, ``cancel``, ``run``.
    what = models.CharField(_("what"), max_length=32)
    by = models.CharField(_("by"), max_length=150, default="")
    why = models.TextField(_("why"), default="")

    class Meta:
        db_table = "jobs_action"
        verbose_name = _("action")
        verbose_name_plural = _("actions")
        indexes: ClassVar = [models.Index(name="jobs_action_job", fields=["job"])]
