"""What ended, and when it goes: only an end state can be deleted, and nothing whose result others replay."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from django.db import transaction
from django.db.models import BooleanField, Exists, ExpressionWrapper, OuterRef, Q, TextField
from django.db.models.expressions import RawSQL
from django.db.models.functions import Cast

from jobs import databases
from jobs.conf import conf
from jobs.lifecycle import now_plus
from jobs.models import ENDED, Action, Job, Marker, State

#: Where a walk through history is: ``finished_at`` as the database writes it, and the id. SQLite compares moments as
#: texts, and a moment that Django wrote again would be another text.
Place = tuple[str, uuid.UUID]


def over(using: str) -> Any:
    """A condition: the retention is over, and no marker points at the result."""
    # Not by ``marker_key``, which the row of an adopted job lacks.
    return _old() & ~Exists(Marker.objects.using(using).filter(job=OuterRef("pk")))


def _old() -> Q:
    found = Q(pk__in=())
    for states, age in _retentions().items():
        found |= Q(state__in=states, finished_at__lt=now_plus(-age))
    return found


def _retentions() -> dict[tuple[State, ...], float]:
    """For how many seconds ended jobs are kept; what is kept for ever is left out."""
    every = {(State.SUCCEEDED, State.CANCELLED): conf().RETENTION, (State.FAILED,): conf().RETENTION_FAILED}
    return {states: age for states, age in every.items() if age is not None}


def walk(using: str, behind: Place | None, limit: int) -> Any:
    """The next ended jobs, oldest first, with ``place`` and ``is_over``. What it passes over is read, and counts."""
    rows, ages = Job.objects.using(using), _retentions().values()
    rows = rows.filter(finished_at__lt=now_plus(-min(ages))) if ages else rows.none()
    if behind is not None:
        at = RawSQL("%s", [behind[0]])
        rows = rows.filter(Q(finished_at__gt=at) | Q(pk__gt=behind[1]), finished_at__gte=at)
    return rows.order_by("finished_at", "pk").annotate(
        place=Cast("finished_at", TextField()), is_over=ExpressionWrapper(over(using), BooleanField())
    )[:limit]


def delete_old(keys: Sequence[uuid.UUID], using: str) -> int:
    """Race with a replay: the rows are locked, and one that is locked already is left for another time."""
    with transaction.atomic(using=using):
        rows = databases.free(Job.objects.using(using).filter(_old(), pk__in=keys))
        locked = list(rows.values_list("pk", flat=True))
        return _delete(locked, using) if locked else 0


#: Seconds in which the message of an adopted job may come again: it bears no sign of its row, and would run anew.
ADOPTED_STAYS = 86400.0


def delete(job_id: uuid.UUID, using: str) -> bool:
    """Delete a job that ended. Race with a replay: the condition. Ask :func:`is_kept` and others before."""
    return _delete([job_id], using) == 1


def may_come_again(job_id: uuid.UUID, using: str) -> bool:
    """Whether the job was another program's message, and ended so lately that a copy may be on its way."""
    adopted = Job.objects.using(using).filter(pk=job_id, made_at__isnull=False)
    return bool(adopted.filter(finished_at__gt=now_plus(-ADOPTED_STAYS)).exists())


def is_kept(job_id: uuid.UUID, using: str) -> bool:
    """Whether others replay the job's result."""
    return Marker.objects.using(using).filter(job=job_id).exists()


def _delete(keys: Sequence[uuid.UUID], using: str) -> int:
    with transaction.atomic(using=using):
        deleted: int = Job.objects.using(using).filter(pk__in=keys, state__in=ENDED)._raw_delete(using)
        gone = Action.objects.using(using).filter(job__in=keys)
        gone.filter(~Exists(Job.objects.using(using).filter(pk=OuterRef("job"))))._raw_delete(using)
    return deleted
