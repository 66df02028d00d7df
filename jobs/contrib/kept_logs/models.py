"""What the runs of jobs have logged."""

from typing import ClassVar

from django.db import models

from jobs import extensions
from jobs.models.fields import JSONText

extensions.need(__package__)


class LogLines(models.Model):
    """The lines of one attempt."""

    id = models.BigAutoField(primary_key=True)
    job = models.UUIDField()
    #: The job's ``lease`` in that run, as an error has it.
    attempt = models.BigIntegerField()
    #: ``{"first": [...], "dropped": 0, "last": [...]}`` of ``[seconds since 1970, level, logger, message]``; a token if
    #: the task's arguments are encrypted (``jobs.contrib.vault``).
    lines = JSONText()

    class Meta:
        db_table = "jobs_log_lines"
        indexes: ClassVar = [models.Index(name="jobs_log_lines_job", fields=["job", "attempt"])]
