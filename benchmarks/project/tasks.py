"""The bodies. They are the same for every peer."""

from __future__ import annotations

from django.conf import settings
from django.db import transaction

from benchmarks.completions import record
from benchmarks.project.models import User


@settings.PEER.task
def noop(number: int) -> None:
    """Only record the completion."""
    record(number)


@settings.PEER.task
def idem(number: int) -> None:
    """Do what an idempotent task does: lock the row, look, act, and note it, in one transaction."""
    with transaction.atomic():
        user = User.objects.select_for_update().get(pk=number)
        if not user.is_welcomed:
            user.is_welcomed = True
            user.save()
    record(number)


TASKS = {"noop": noop, "idem": idem}

if "jobs" in settings.INSTALLED_APPS:
    import benchmarks.project.events  # noqa: F401
    from benchmarks.project import waiting

    TASKS |= {"waits": waiting.waits, "anoop": waiting.anoop}
