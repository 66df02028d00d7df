"""What running bodies say of themselves: each process leaves it in shared memory, and the supervisor writes it."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

from jobs.lifecycle.worker_state import MAX_SLOTS, ProcessState, Text, worker_state

#: The most bytes of a text; and what it takes in the memory, with what stands before it.
MOST = 2000
SIZE = 16 + MOST

#: A text for each slot of the worker state. It is made when this module is imported: before the worker forks, as
#: ``keeping.py`` needs it.
memory = mmap.mmap(-1, MAX_SLOTS * SIZE)

#: Until when a caller waits for results, so that the processes announce each end; on the machine's monotonic clock.
answers_until = memoryview(mmap.mmap(-1, 8)).cast("d")


def _of(index: int) -> Text:
    return Text(memory, index * SIZE, MOST)


def leave(slot: ProcessState, text: bytes) -> bool:
    """Leave a text for the supervisor, which writes it within a second; False: too long, or no supervisor."""
    if slot.index is None:
        # It stands in for a slot: nothing is kept.
        return True
    is_heard = worker_state.silence > 0 and len(text) <= MOST
    _of(slot.index).write(text if is_heard else b"")
    return is_heard


def heard(known: dict[int, int]) -> Iterator[bytes]:
    """What bodies have said since; ``known`` keeps for the reader which version it has read of each slot."""
    for slot in worker_state.occupied():
        version, text = _of(slot.index).read()
        # Race: the body says something else at this moment, which is heard the next time.
        if text is None or version == known.get(slot.index, 0):
            continue
        if text:
            yield text
        known[slot.index] = version
