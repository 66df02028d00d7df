"""The supervisor asks a body to end that is one of several in its process, before it ends the process."""

from __future__ import annotations

import signal
import time
import uuid
from typing import Any

from jobs.contrib.aio.slots import wish
from jobs.lifecycle.worker_state import BODY, Occupied
from jobs.worker.supervisor import Supervisor

#: Seconds that one of a process's several bodies has to end by itself, before the process is killed.
GRACE = 3.0


class AskingSupervisor(Supervisor):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        #: Bodies that were asked to end, of processes that have several: until when, and why.
        self._asked: dict[tuple[int, uuid.UUID, int], tuple[float, str, str]] = {}

    def end_or_ask(self, slot: Occupied, kind: str, text: str, number: int = signal.SIGKILL) -> None:
        if slot.is_shared:
            wish(slot, kind)
            self._asked[slot.index, slot.job, slot.lease] = time.monotonic() + GRACE, kind, text
        else:
            super().end_or_ask(slot, kind, text, number)

    def _enforce_limits(self, slots: list[Occupied]) -> None:
        now = time.monotonic()
        for asked, (until, kind, text) in list(self._asked.items()):
            slot = next((slot for slot in slots if (slot.index, slot.job, slot.lease) == asked), None)
            if slot is None or until < now:
                del self._asked[asked]
            if slot is not None and until < now:
                self._end_run(slot, kind, text)
        super()._enforce_limits([slot for slot in slots if not slot.is_shared or _is_late(slot, now)])


def _is_late(slot: Occupied, now: float) -> bool:
    """Whether a body has not ended at its hard limit. One that has not begun waits for others: it has no limits yet."""
    return slot.phase >= BODY and 0 < slot.hard_at < now - GRACE and not slot.is_dead
