"""The locks that the database keeps."""

from typing import ClassVar

from django.db import models


class Lock(models.Model):
    """A lock, if no other store keeps the locks (``locks.py``)."""

    is_beside = True

    key = models.CharField(primary_key=True, max_length=255)
    #: The job that holds it, and its lease: it holds the lock until that run ends. None outside of jobs.
    job = models.UUIDField(null=True)
    lease = models.IntegerField(default=0)
    #: Identifies this holder.
    token = models.UUIDField()
    #: Grows with every holder.
    fence = models.BigIntegerField()
    #: Of a holder outside of jobs: seconds since 1970 by the database's clock.
    expires_at = models.FloatField(default=0)

    class Meta:
        db_table = "jobs_lock"
        indexes: ClassVar = [models.Index(name="jobs_lock_expires", fields=["expires_at"])]
