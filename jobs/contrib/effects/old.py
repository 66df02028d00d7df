"""Old calls of the ledger are deleted."""

from __future__ import annotations

import time

from django.db.models import BooleanField, Exists, ExpressionWrapper, OuterRef, Q

from jobs.conf import conf
from jobs.contrib.effects.models import Effect
from jobs.contrib.pruning.prune import FULL_WALK
from jobs.lifecycle.transitions import now_plus
from jobs.models import Job

#: For each database: up to which row this process has come, and when it began.
_walks: dict[str, tuple[int, float]] = {}


def prune(using: str, budget: float) -> int:
    """Delete answered calls that are old, and whose job is gone; returns how many. It skips calls that stay."""
    deadline, done = time.monotonic() + budget, 0
    while (retention := conf().RETENTION_EFFECTS) is not None and (some := _next_old(using)):
        gone = ~Exists(Job.objects.using(using).filter(pk=OuterRef("job")))
        # It may have been answered long after it was begun.
        late = now_plus(-retention)
        rows = Effect.objects.using(using).filter(gone, pk__in=some, state=Effect.State.SENT, sent_at__lt=late)
        # By their keys alone: for a DELETE with a subquery MySQL reads, and locks, the whole table.
        if keys := list(rows.values_list("pk", flat=True)):
            done += Effect.objects.using(using).filter(pk__in=keys, state=Effect.State.SENT)._raw_delete(using)
        _walks[using] = (some[-1], _walks[using][1])
        if time.monotonic() > deadline:
            break
    return done


def _next_old(using: str) -> list[int]:
    """The keys of the next old rows, in the order of time; none at the end, until it is time for the next walk."""
    now = time.monotonic()
    place, began = _walks.get(using, (0, now))
    over = ExpressionWrapper(Q(created_at__lt=now_plus(-(conf().RETENTION_EFFECTS or 0))), BooleanField())
    rows = Effect.objects.using(using).filter(pk__gt=place).order_by("pk").values_list("pk", over)
    old = [key for key, is_old in rows[: conf().BATCH] if is_old]
    _walks[using] = (place, began) if old or now - began <= FULL_WALK else (0, now)
    return old
