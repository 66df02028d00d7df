from typing import ClassVar

from django.db import models


class Effect(models.Model):
    """A ledger row per committed effect, with no unique constraint: a doubled effect shows as two rows."""

    key = models.CharField(max_length=100, db_index=True)
    pid = models.IntegerField(default=0)
    note = models.CharField(max_length=200, default="")

    class Meta:
        app_label = "tests"
        ordering: ClassVar = ["pk"]

    def __str__(self) -> str:
        return self.key


class Imported(models.Model):
    """What the holders of a lock write: ``fence`` is the token of the last one."""

    key = models.CharField(max_length=100, unique=True)
    fence = models.BigIntegerField(default=0)
    note = models.CharField(max_length=200, default="")

    class Meta:
        app_label = "tests"

    def __str__(self) -> str:
        return self.key


class Order(models.Model):
    """A business row, committed in one transaction with its job: where it is, the job's effect has to be."""

    key = models.CharField(max_length=100, unique=True)
    job = models.UUIDField()

    class Meta:
        app_label = "tests"

    def __str__(self) -> str:
        return self.key
