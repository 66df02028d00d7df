"""The bodies. They are the same for every peer."""

from __future__ import annotations

from django.conf import settings
from django.db import transaction

from benchmarks.completions import record
from benchmarks.project import waiting
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


@settings.PEER.task
def row(number: int) -> None:
    """Write a row, and nothing else."""
    write(number, 0)
    record(number)


def write(number: int, step: int) -> None:
    User.objects.create(email=f"{number}.{step}")


TASKS = {"noop": noop, "idem": idem, "row": row}

if settings.PEER.has_workflows:
    TASKS |= {f"steps_{steps}": settings.PEER.workflow(steps, write) for steps in (5, 10, 50)}

if settings.PEER.has_async or settings.PEER.is_async:
    TASKS |= {"waits": settings.PEER.task(waiting.waits), "anoop": settings.PEER.task(waiting.anoop)}

if settings.PEER.is_async:
    # It never blocks, so nobody would run it in a thread.
    TASKS["noop"] = TASKS["anoop"]

if "jobs" in settings.INSTALLED_APPS:
    import benchmarks.project.events
    import benchmarks.project.shares
    import benchmarks.project.waits  # noqa: F401
    import tests.helpers.looks  # noqa: F401
