"""A signal that a person sends: it stands in the history of the job that takes it."""

from typing import Any

from django.db import transaction

from jobs.contrib.durable import store
from jobs.contrib.durable.signals import SIGNAL, signal
from jobs.contrib.operations.notes import note
from jobs.contrib.redaction.display import shown
from jobs.models import Job


def taker(key: str, using: str) -> Job | None:
    """The job that would take the signal: the oldest that waits for it."""
    return store.awaiting(SIGNAL + key, using).order_by("waits_for", "pk").first()


def send(key: str, payload: Any, using: str, who: str) -> Job | None:
    """Send it; returns the job that takes it, if one waits. Raises as :func:`jobs.signal`."""
    with transaction.atomic(using=using):
        signal(key, payload, using)
        if (job := taker(key, using)) is not None:
            note(job.pk, using, "signal", shown(job).text("key", key), who, "")
    return job
