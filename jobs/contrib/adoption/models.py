"""The mark of a database."""

from django.db import models
from django.db.models.functions import Now


class Instance(models.Model):
    """Which database this is: a restored copy carries the mark of its original, and runs nothing until adopted."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    mark = models.CharField(max_length=255)
    adopted_at = models.DateTimeField(default=Now)

    class Meta:
        db_table = "jobs_instance"
