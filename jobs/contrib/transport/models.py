"""The messages of the ``jobs://`` broker, and the bindings of its queues."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class Message(models.Model):
    """A message of the ``jobs://`` broker (``transport.py``)."""

    is_beside = True

    id = models.BigAutoField(primary_key=True)
    queue = models.CharField(max_length=255)
    priority = models.SmallIntegerField(default=0)
    payload = models.TextField()
    #: Seconds since 1970 by the database's clock; a consumer that holds the message keeps moving this on.
    visible_at = models.FloatField()
    deliveries = models.PositiveIntegerField(default=0)

    class Meta:
        db_table = "jobs_message"
        indexes: ClassVar = [models.Index(name="jobs_message_next", fields=["queue", "priority", "id"])]


class Binding(models.Model):
    """A queue bound to an exchange of the ``jobs://`` broker."""

    is_beside = True

    id = models.BigAutoField(primary_key=True)
    exchange = models.CharField(max_length=200)
    routing_key = models.CharField(max_length=200)
    pattern = models.CharField(max_length=200)
    queue = models.CharField(max_length=200)

    class Meta:
        db_table = "jobs_binding"
        constraints: ClassVar = [
            models.UniqueConstraint(name="jobs_binding_unique", fields=["exchange", "queue", "routing_key", "pattern"])
        ]
