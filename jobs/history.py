"""What ended, and when it goes: only an end state can be deleted, and nothing whose result others replay."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet

from jobs import databases
from jobs.lifecycle import now_plus
from jobs.models import ENDED, Action, Job, Marker


def ended(using: str, states: Sequence[str], age: float) -> QuerySet[Job]:
    """Jobs that ended ``age`` seconds ago, oldest first; not those whose result a marker points at."""
    assert set(states) <= set(ENDED)
    rows = Job.objects.using(using).filter(
        state__in=states, finished_at__lt=now_plus(-age), created_at__lt=now_plus(-age)
    )
    # Not by ``marker_key``, which the row of an adopted job lacks.
    return rows.filter(~Exists(Marker.objects.using(using).filter(job=OuterRef("pk")))).order_by("created_at")


def delete_ended(using: str, states: Sequence[str], age: float, limit: int, window: float | None = None) -> int:
    """Delete one batch, of jobs that were created in the last ``window`` seconds if it is given.

    Race with a replay: the rows are locked, and one that is locked already is left for another time.
    """
    rows = ended(using, states, age)
    if window is not None:
        rows = rows.filter(created_at__gte=now_plus(-window))
    # In order, and so by the index.
    if not rows.values_list("pk")[:1]:
        return 0
    with transaction.atomic(using=using):
        ids = list(databases.free(rows).values_list("pk", flat=True)[:limit])
        return _delete(ids, using, states) if ids else 0


#: Seconds in which the message of an adopted job may come again: it bears no sign of its row, and would run anew.
ADOPTED_STAYS = 86400.0


def delete(job_id: uuid.UUID, using: str) -> bool:
    """Delete a job that ended. Race with a replay: as :func:`delete_ended`. Ask :func:`is_kept` and others before."""
    return _delete([job_id], using, ENDED) == 1


def may_come_again(job_id: uuid.UUID, using: str) -> bool:
    """Whether the job was another program's message, and ended so lately that a copy may be on its way."""
    fresh = Job.objects.using(using).filter(pk=job_id, finished_at__gt=now_plus(-ADOPTED_STAYS))
    return any("v" not in options for options in fresh.values_list("options", flat=True))


def is_kept(job_id: uuid.UUID, using: str) -> bool:
    """Whether others replay the job's result."""
    return Marker.objects.using(using).filter(job=job_id).exists()


def _delete(ids: Sequence[uuid.UUID], using: str, states: Sequence[str]) -> int:
    with transaction.atomic(using=using):
        deleted: int = Job.objects.using(using).filter(pk__in=ids, state__in=states)._raw_delete(using)
        gone = Action.objects.using(using).filter(job__in=ids)
        gone.filter(~Exists(Job.objects.using(using).filter(pk=OuterRef("job"))))._raw_delete(using)
    return deleted
