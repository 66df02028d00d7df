"""The batches, and the column of a job that names its batch."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from jobs.models.fields import Completed, JSONText, uuid7


class Batch(Completed):
    """Many jobs with one name, one bar and one end (``jobs.batch``). Its jobs' rows say how far it is."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    name = models.CharField(_("name"), max_length=255)
    made_at = models.DateTimeField(_("created at"), default=Now)
    #: Signatures to call at the end; None: there is none, or it was called.
    on_success = JSONText(_("on success"), null=True)
    on_failure = JSONText(_("on failure"), null=True)
    #: The calls that were made: ``{"on_success": {"task": ..., "id": ...}}``.
    called = models.JSONField(default=dict)
    #: None while a job of it may still run.
    ended_at = models.DateTimeField(_("finished at"), null=True)
    #: How many jobs were in which state at that time.
    counts = models.JSONField(default=dict)

    class Meta:
        db_table = "jobs_batch"
        verbose_name = _("batch")
        verbose_name_plural = _("batches")
        indexes: ClassVar = [models.Index(name="jobs_batch_open", fields=["id"], condition=Q(ended_at__isnull=True))]

    def __str__(self) -> str:
        return f"{self.name} ({self.id})"

    def adding(self) -> AbstractContextManager[None]:
        """Add the calls of the block to this batch, if it has not ended. A job of the batch may always do that.

        Raises:
            ValueError: it has ended.
            LostLease: the run that adds to it was given to another worker, cancelled or killed.
        """
        from jobs.contrib.batches.batch import adding

        return adding(self)


#: The batch that a job belongs to. No constraint, and no index but the one below.
COLUMNS: dict[str, Any] = {
    "batch": models.ForeignKey(
        Batch, models.DO_NOTHING, "jobs", null=True, db_constraint=False, db_index=False, verbose_name=_("batch")
    )
}
INDEXES = [models.Index(name="jobs_job_batch", fields=["batch", "state"], condition=Q(batch__isnull=False))]
