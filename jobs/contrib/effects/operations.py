"""What a person found out about an external call."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from jobs.contrib.effects.models import Effect
from jobs.models.values import jsonable


def clear_up(key: int, using: str, happened: bool, answer: Any = None) -> bool:
    """A person found out: if it happened, the next run gets the answer (JSON); if not, it makes the call.

    False: the call is neither ambiguous nor parked. Race: a run may take it over. Both lock the row before they look.
    """
    kept = jsonable(answer, "the answer")
    rows = Effect.objects.using(using).filter(pk=key)
    with transaction.atomic(using=using):
        row = rows.select_for_update().first()
        if row is None or row.state == Effect.State.SENT or row.is_being_made():
            return False
        if happened:
            return rows.update(state=Effect.State.SENT, answer=kept, sent_at=Now()) == 1
        return bool(rows.delete())
