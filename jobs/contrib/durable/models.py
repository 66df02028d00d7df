"""What durable tasks have done and wait for, and the signals that let them go on."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from jobs.models.fields import Completed, JSONText

#: No process has looked yet, after the signal's commit, whether a job waits for it.
NOT_LOOKED = 1e12


class Step(Completed):
    """One step of a job, in the order in which they were reached (``history.py``)."""

    class Kind(models.TextChoices):
        STEP = "step", _("step")
        SLEEP = "sleep", _("sleep")
        WAIT = "wait", _("wait")
        GATHER = "gather", _("children")
        VERSION = "version", _("version")

    class State(models.TextChoices):
        #: It waits: for its time, a signal, its children, or another attempt.
        WAITING = "waiting", _("waiting")
        DONE = "done", _("done")
        FAILED = "failed", _("failed")

    id = models.BigAutoField(primary_key=True)
    job = models.UUIDField(_("job"))
    #: What identifies it in the body. The second of a name is ``name#2``.
    name = models.CharField(_("name"), max_length=255)
    kind = models.CharField(_("kind"), max_length=8, choices=Kind.choices)
    state = models.CharField(_("state"), max_length=8, choices=State.choices)
    #: The run that wrote it last.
    lease = models.BigIntegerField(_("lease"))
    #: While not all children are done: their ids.
    result = JSONText(_("result"), null=True)
    error = JSONText(_("error"), null=True)
    #: How many attempts have failed.
    failures = models.PositiveIntegerField(_("failures"), default=0)
    #: When a sleep ends, a wait is given up, or the next attempt begins.
    until = models.DateTimeField(_("until"), null=True)
    #: The signal that a wait is for; the batch of a gather's children; of a step, "again" for each time that it was
    #: taken back.
    key = models.CharField(_("key"), max_length=255, blank=True, default="")
    #: What takes it back if the job is cancelled: ``{"function": "app.module:name", "args": [], "kwargs": {}}``.
    on_cancel = JSONText(null=True)
    #: When it was first reached, and when it was done.
    made_at = models.DateTimeField(_("begun at"), default=Now)
    done_at = models.DateTimeField(_("done at"), null=True)

    class Meta:
        db_table = "jobs_step"
        verbose_name = _("step")
        verbose_name_plural = _("steps")
        constraints: ClassVar = [models.UniqueConstraint(name="jobs_step_name", fields=["job", "name"])]

    def __str__(self) -> str:
        return self.name


class Signal(Completed):
    """Something happened that durable tasks may wait for (``jobs.signal``). One wait takes it."""

    id = models.BigAutoField(primary_key=True)
    key = models.CharField(_("key"), max_length=255)
    payload = JSONText(_("payload"), null=True)
    made_at = models.DateTimeField(_("sent at"), default=Now)
    #: Until when, in seconds since 1970, the workers look whether a job waits for it.
    look_until = models.FloatField(default=NOT_LOOKED)
    #: The job that took it.
    taken_by = models.UUIDField(_("taken by"), null=True)

    class Meta:
        db_table = "jobs_signal"
        verbose_name = _("signal")
        verbose_name_plural = _("signals")
        permissions: ClassVar = [("send_signal", _("Can send signals to durable tasks"))]
        indexes: ClassVar = [
            models.Index(name="jobs_signal_new", fields=["key", "id"], condition=Q(taken_by__isnull=True)),
            models.Index(name="jobs_signal_look", fields=["look_until"], condition=Q(taken_by__isnull=True)),
            models.Index(name="jobs_signal_taken", fields=["taken_by"], condition=Q(taken_by__isnull=False)),
            models.Index(name="jobs_signal_made", fields=["made_at"]),
        ]

    def __str__(self) -> str:
        return self.key
