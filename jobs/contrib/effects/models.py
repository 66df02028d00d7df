"""The ledger: which external calls were begun, and what became of each."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from jobs.models import Job, State
from jobs.models.fields import Completed, JSONText


class Effect(Completed):
    """An external call: it was begun, and what the provider answered (``ledger.py``)."""

    class State(models.TextChoices):
        #: Committed before the call. If its run is gone, it is unknown whether the call happened.
        SENDING = "sending", _("sending")
        SENT = "sent", _("sent")
        #: A person has to decide: it is unknown whether it happened, or its answer could not be kept.
        PARKED = "parked", _("parked")

    id = models.BigAutoField(primary_key=True)
    name = models.CharField(_("name"), max_length=100)
    key = models.CharField(_("key"), max_length=255)
    state = models.CharField(_("state"), max_length=8, choices=State.choices, default=State.SENDING)
    #: The job that called last, and under which lease.
    job = models.UUIDField(_("job"))
    lease = models.BigIntegerField(_("lease"))
    #: How many calls were begun and may have happened.
    calls = models.PositiveIntegerField(_("calls"), default=1)
    answer = JSONText(_("answer"), null=True)
    created_at = models.DateTimeField(_("created at"), default=Now)
    sent_at = models.DateTimeField(_("sent at"), null=True)

    #: What a body asked for: the crash kit compares two runs by it.
    asked_for = ("name", "key", "state", "answer")

    class Meta:
        db_table = "jobs_effect"
        verbose_name = _("external effect")
        verbose_name_plural = _("external effects")
        constraints: ClassVar = [
            models.UniqueConstraint(name="jobs_effect_unique", fields=["name", "key"]),
            models.CheckConstraint(name="jobs_effect_state", condition=Q(state__in=("sending", "sent", "parked"))),
        ]
        indexes: ClassVar = [
            models.Index(name="jobs_effect_job", fields=["job"]),
            models.Index(name="jobs_effect_open", fields=["state"], condition=~Q(state="sent")),
        ]

    def __str__(self) -> str:
        return f"{self.name}:{self.key}"

    def is_being_made(self) -> bool:
        """Whether the run that began the call still runs."""
        running = Job.objects.using(self._state.db).filter(pk=self.job, lease=self.lease, state=State.RUNNING)
        return self.state == Effect.State.SENDING and running.exists()
