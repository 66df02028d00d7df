"""To cancel a running job is to insert a ``Cancellation``. A coroutine is ended for it before it reaches its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobs.contrib.aio.slots import wish
from jobs.lifecycle.worker_state import CANCELLED, worker_state
from jobs.models import Cancellation


def ticked(answers: Mapping[str, Mapping[str, Any]]) -> None:
    """In the supervisor: tell the processes of this node which of their bodies should end."""
    if not worker_state.has_blocks:
        return
    for using in (using for using, found in answers.items() if found["is_asked_to_end"]):
        slots = {slot.job: slot for slot in worker_state.occupied() if slot.is_shared and slot.has_job}
        for key in Cancellation.objects.using(using).filter(pk__in=slots).values_list("pk", flat=True):
            wish(slots[key], CANCELLED)
