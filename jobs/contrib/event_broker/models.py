"""How far each service is with the events of each name."""

import uuid
from typing import ClassVar

from django.db import models

from jobs import extensions

extensions.need("jobs.events")
extensions.need(__package__)


class Position(models.Model):
    """How far a service's events of a name are: the last number given here, or for another service, handed on."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    source = models.CharField(max_length=255)
    name = models.CharField(max_length=255)
    number = models.BigIntegerField(default=0)
    #: For another service: since when a number is missing; None: no number is.
    gap_since = models.DateTimeField(null=True)

    class Meta:
        db_table = "jobs_event_position"
        constraints: ClassVar = [models.UniqueConstraint(name="jobs_event_position_of", fields=["source", "name"])]
