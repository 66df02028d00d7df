"""The slots of a process's bodies in the worker's shared memory, and the wish that one of the bodies should end.

The memory of the wishes is made when this module is imported: before the worker forks, as ``supervisor.py`` needs it.
"""

from __future__ import annotations

import mmap
import os
import struct
import uuid

from jobs.lifecycle.worker_state import (
    CANCELLED,
    KILLED,
    MAX_PROCESSES,
    MAX_SHARED,
    REVOKED,
    Occupied,
    ProcessState,
    start_of,
    worker_state,
)

#: Why a body should end. An unknown number is no wish.
_KINDS = {1: CANCELLED, 2: REVOKED, 3: KILLED}

#: For each slot: the job of the wish, its lease, and the number of the kind.
_WISH = struct.Struct("<16sqq")
_wishes = mmap.mmap(-1, MAX_SHARED * _WISH.size)


def take_block(count: int) -> list[ProcessState]:
    """An occupied slot for this process, and behind it ``count`` free ones for its bodies."""
    worker_state.has_blocks = True
    size, start = count + 1, start_of(os.getpid())
    with worker_state.alone():
        for first in range(MAX_PROCESSES, MAX_PROCESSES + MAX_SHARED - size + 1, size):
            # A dead process keeps the slots of its bodies until their jobs were finished.
            if not any(worker_state.pids[first : first + size].tolist()):
                slots = [ProcessState(worker_state, first + n, start) for n in range(size)]
                slots[0].occupy()
                return slots
    raise RuntimeError(
        f"more than {MAX_SHARED} async bodies at once in this worker: start a second worker, or lower "
        "JOBS['ASYNC_CONCURRENCY']"
    )


def wish(slot: Occupied, kind: str) -> None:
    """Ask the process to end this body, and no other.

    Race: the slot may have another body by now. The wish names its job and lease.
    """
    number = next(number for number, each in _KINDS.items() if each == kind)
    _WISH.pack_into(_wishes, _place(slot.index), slot.job.bytes, slot.lease, number)


def wished(slot: ProcessState, job: uuid.UUID, lease: int) -> str | None:
    """Why the job, under this lease, should end; None: it was not asked to."""
    key, of_lease, number = _WISH.unpack_from(_wishes, _place(slot.index))
    return _KINDS.get(number) if (key, of_lease) == (job.bytes, lease) else None


def _place(index: int) -> int:
    return (index - MAX_PROCESSES) * _WISH.size
