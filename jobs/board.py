"""What each process of this worker runs at the moment, in memory that they share.

A pool child writes which job it runs and clears it after the settle; the companion process reads. So the
node knows which running rows nobody runs any more, and whose death took which job along, without a
statement per job. The memory is made when this module is imported, before the worker forks.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from jobs.errors import NotSettled

#: The node's id; then, on the machine's monotonic clock, its last beat, when the worker was told to stop, and when
#: not to wait for its bodies any longer.
_HEADER, _TIME, _BEAT, _STOP, _END = 40, struct.Struct("<d"), 16, 24, 32
_SLOT = struct.Struct("<qq16s")

#: Added to the pid of a slot whose run could not be settled: the process lives, and the job is nobody's.
_LEFT = 1 << 40

#: More processes and threads than one worker has. A slot is found by looking from a place of the process on.
SLOTS = 1024


@dataclass(frozen=True, slots=True)
class Occupied:
    """A slot as it was read: the process ``pid`` runs ``job`` under ``lease`` (0: about to claim)."""

    index: int
    pid: int
    lease: int
    job: uuid.UUID
    #: The run is over, and could not be settled or claimed for want of a database.
    is_left: bool = False

    @property
    def is_dead(self) -> bool:
        """Nobody runs the job any more."""
        return self.is_left or not is_alive(self.pid)


class Board:
    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _HEADER + SLOTS * _SLOT.size)
        self._lock = threading.Lock()

    @property
    def node(self) -> uuid.UUID:
        """The id under which this worker claims; it changes when the node was declared dead."""
        return uuid.UUID(bytes=self._memory[:16])

    @node.setter
    def node(self, value: uuid.UUID) -> None:
        self._memory[:16] = value.bytes

    def about(self, action: str, **more: Any) -> dict[str, Any]:
        """The fields of a line about this worker (see ``jobs.logs``)."""
        return {"action": action, "node": str(self.node), **more}

    def note_beat(self) -> None:
        _TIME.pack_into(self._memory, _BEAT, time.monotonic())

    @property
    def silence(self) -> float:
        """Seconds since the node's last beat was written; 0 where nobody beats (outside of a worker)."""
        return self._since(_BEAT) or 0.0

    def note_stop(self) -> None:
        if self.stopping_for is None:
            _TIME.pack_into(self._memory, _STOP, time.monotonic())

    @property
    def stopping_for(self) -> float | None:
        """Seconds since the worker was told to stop; None if it was not. It outlives a companion that dies."""
        return self._since(_STOP)

    def note_end(self) -> None:
        self.note_stop()
        if self.ending_for is None:
            _TIME.pack_into(self._memory, _END, time.monotonic())

    @property
    def ending_for(self) -> float | None:
        """Seconds since the worker was told to stop at once, whatever it runs; None if it was not."""
        return self._since(_END)

    def _since(self, offset: int) -> float | None:
        (at,) = _TIME.unpack_from(self._memory, offset)
        return time.monotonic() - at if at else None

    @contextmanager
    def running(self, job: uuid.UUID) -> Iterator[Slot]:
        """Occupy a slot for one run.

        A process that is being ended from outside leaves its slot as it is: its death gives the job back. So does
        a run that found no database to settle itself: the companion settles it when there is one again.
        """
        slot = Slot(self, self._take(job))
        try:
            yield slot
        except NotSettled:
            slot.leave()
            raise
        except Exception:
            slot.clear()
            raise
        slot.clear()

    def occupied(self) -> list[Occupied]:
        return [
            Occupied(index, pid % _LEFT, lease, uuid.UUID(bytes=job), pid >= _LEFT)
            for index, (pid, lease, job) in enumerate(_SLOT.iter_unpack(self._memory[_HEADER:]))
            if pid
        ]

    def clear(self, slot: Occupied) -> None:
        self._write(slot.index, 0, 0, uuid.UUID(int=0))

    def wipe(self) -> None:
        self._memory[16:] = bytes(_HEADER - 16 + SLOTS * _SLOT.size)

    def _take(self, job: uuid.UUID) -> int:
        # A dead process keeps its slot until the companion has seen it, so a successor never hides a crash.
        while True:
            with self._lock:
                # Neighbours begin far from each other: between processes nothing guards this search.
                start = 61 * os.getpid()
                for step in range(SLOTS):
                    index = (start + step) % SLOTS
                    if _SLOT.unpack_from(self._memory, _HEADER + index * _SLOT.size)[0] == 0:
                        self._write(index, os.getpid(), 0, job)
                        return index
            # All are left over from an outage of the database: the companion settles them when it is back.
            time.sleep(0.5)

    def _write(self, index: int, pid: int, lease: int, job: uuid.UUID) -> None:
        _SLOT.pack_into(self._memory, _HEADER + index * _SLOT.size, pid, lease, job.bytes)


class Slot:
    def __init__(self, board: Board, index: int) -> None:
        self._board = board
        self._offset = _HEADER + index * _SLOT.size

    def lease(self, lease: int) -> None:
        struct.pack_into("<q", self._board._memory, self._offset + 8, lease)

    def clear(self) -> None:
        struct.pack_into("<q", self._board._memory, self._offset, 0)

    def leave(self) -> None:
        struct.pack_into("<q", self._board._memory, self._offset, os.getpid() + _LEFT)


board = Board()


def _after_fork() -> None:
    board._lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def is_alive(pid: int) -> bool:
    """Whether the process runs (or is stopped); a zombie that its parent has not reaped is dead."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except FileNotFoundError:
        if os.path.exists("/proc/self/stat"):
            return False
    except ProcessLookupError:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
