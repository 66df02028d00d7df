"""External calls, for people: which are ambiguous."""

from __future__ import annotations

from typing import Any

from django.db.models import Exists, OuterRef, Q, QuerySet

from jobs.models import Effect, Job, State


def with_makers(rows: QuerySet[Effect]) -> QuerySet[Effect]:
    """The rows with ``is_made``: the run that began the call still runs. For :func:`status`."""
    running = Job.objects.using(rows.db).filter(pk=OuterRef("job"), lease=OuterRef("lease"), state=State.RUNNING)
    return rows.annotate(is_made=Exists(running))


def status(row: Any) -> str:
    """``sending`` (somebody makes the call), ``ambiguous``, ``parked`` or ``sent``."""
    return "ambiguous" if row.state == Effect.State.SENDING and not row.is_made else str(row.state)


def unsettled(using: str) -> QuerySet[Effect]:
    """Calls that are ambiguous or parked, oldest first."""
    # exclude(), because that is the condition of the partial index.
    rows = with_makers(Effect.objects.using(using).exclude(state=Effect.State.SENT))
    return rows.filter(Q(state=Effect.State.PARKED) | Q(is_made=False)).order_by("pk")
