"""The business rows: what was ordered, and what was done for it."""

from django.db import models


class Order(models.Model):
    """It is committed with the call of its job."""

    job = models.UUIDField(primary_key=True)


class Effect(models.Model):
    """What a body does. Nothing forbids a second one: it is counted."""

    job = models.UUIDField(db_index=True)
