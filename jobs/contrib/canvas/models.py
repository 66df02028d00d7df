"""How far chords are, and their parts."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models.functions import Now

from jobs.models.fields import JSONText


class Chord(models.Model):
    """How far the parts of a chord are (``chords.py``)."""

    #: Celery's id of the group.
    id = models.CharField(primary_key=True, max_length=255)
    #: When it was called, or when its last part failed.
    made_at = models.DateTimeField(default=Now)
    size = models.PositiveIntegerField()
    done = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)

    class Meta:
        db_table = "jobs_chord"


class ChordPart(models.Model):
    """One part of a chord, and what became of it."""

    id = models.BigAutoField(primary_key=True)
    chord = models.ForeignKey(Chord, models.CASCADE, "parts", db_index=False)
    task_id = models.CharField(max_length=255)
    #: Where its result belongs in the list that the body gets; the groups in a header are lists in it.
    place = models.JSONField()
    ok = models.BooleanField(null=True)
    result = JSONText(null=True)
    error = models.TextField(default="")

    class Meta:
        db_table = "jobs_chord_part"
        constraints: ClassVar = [models.UniqueConstraint(name="jobs_chord_part_task", fields=["chord", "task_id"])]
