"""What each process of this worker does at the moment, in memory that they share.

A process writes which job it runs, with its time limits; the companion reads. So the node knows whose death took which
job along, which body runs too long, and which process is busy, without a statement per job. The memory is made when
this module is imported, before the worker forks.
"""

from __future__ import annotations

import json
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

#: The node's id; then, on the machine's monotonic clock, its last beat, when the worker was told to stop, and when
#: not to wait for its bodies any longer; whether a stock task waits for a process, whether somebody wants events, and
#: how many claims in a row found nothing.
_TIME, _BEAT, _STOP, _END, _STOCK, _EVENTS, _MISSES = struct.Struct("<d"), 16, 24, 32, 40, 41, 42

#: The queues that the worker consumes: the number of their last change, their length as JSON, and the JSON.
_QUEUES, _QUEUES_AT, _QUEUES_MOST = struct.Struct("<qq"), 48, 1 << 16
_PIDS = _QUEUES_AT + _QUEUES.size + _QUEUES_MOST

#: Phase, lease, token of the row, token of its claim, began, soft limit, hard limit, job; then what people read.
_SLOT = struct.Struct("<qqqqddd16s")
_TEXT, _TEXT_MOST = struct.Struct("<q"), 1000
_SIZE = _SLOT.size + _TEXT.size + _TEXT_MOST

#: A process waits; it claims, or is between two jobs; it has a job; it is in the body.
IDLE, BUSY, NAMED, BODY = range(4)

#: More processes and threads than one worker has. A slot is found by looking from a place of the process on.
SLOTS = 1024

#: The processes of the slots come first, side by side: to look who is there is one step.
_HEADER = _PIDS + 8 * SLOTS

#: Seconds of a batch's first job after which the others are given back, and of a claim after which it is renewed.
LONG, OLD = 2.0, 1.0


@dataclass(frozen=True, slots=True)
class Occupied:
    """A slot as it was read: the process ``pid`` has ``job`` under ``lease``. Times are of the monotonic clock."""

    index: int
    pid: int
    phase: int
    lease: int
    token: int
    #: Of the claim, whose other rows wait behind this one; 0: none does.
    batch: int
    began: float
    soft_at: float
    hard_at: float
    job: uuid.UUID

    @property
    def is_dead(self) -> bool:
        """Nobody runs the job any more."""
        return not is_alive(self.pid)

    @property
    def has_job(self) -> bool:
        return self.phase >= NAMED


class Board:
    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _HEADER + SLOTS * _SIZE)
        self._pids = memoryview(self._memory)[_PIDS:_HEADER].cast("q")
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

    @property
    def stock_waits(self) -> bool:
        """Whether a stock task waits for a process: one that is between two jobs offers itself."""
        return bool(self._memory[_STOCK])

    @stock_waits.setter
    def stock_waits(self, value: bool) -> None:
        self._memory[_STOCK] = value

    @property
    def wants_events(self) -> bool:
        """Whether the worker sends Celery's events (``-E``)."""
        return bool(self._memory[_EVENTS])

    @wants_events.setter
    def wants_events(self, value: bool) -> None:
        self._memory[_EVENTS] = value

    @property
    def misses(self) -> int:
        """How many claims of this node found nothing since the last that found something; up to 255, roughly."""
        return self._memory[_MISSES]

    @misses.setter
    def misses(self, value: int) -> None:
        self._memory[_MISSES] = min(value, 255)

    @property
    def queues_version(self) -> int:
        return int(_QUEUES.unpack_from(self._memory, _QUEUES_AT)[0])

    @property
    def queues(self) -> list[str]:
        """The queues that the worker consumes."""
        while True:
            version, length = _QUEUES.unpack_from(self._memory, _QUEUES_AT)
            start = _QUEUES_AT + _QUEUES.size
            text = self._memory[start : start + length]
            # Race: the main process may be writing.
            if version == self.queues_version and version % 2 == 0:
                return list(json.loads(text or b"[]"))
            time.sleep(0.001)

    @queues.setter
    def queues(self, names: list[str]) -> None:
        text = json.dumps(sorted(names)).encode()[:_QUEUES_MOST]
        version, start = self.queues_version, _QUEUES_AT + _QUEUES.size
        _QUEUES.pack_into(self._memory, _QUEUES_AT, version + 1, len(text))
        self._memory[start : start + len(text)] = text
        _QUEUES.pack_into(self._memory, _QUEUES_AT, version + 2, len(text))

    def take(self) -> Slot:
        """A slot for this process, or for a thread of it. A dead process keeps its own until it was settled."""
        with self._lock:
            # Neighbours begin far from each other: between processes nothing guards this search.
            start = 61 * os.getpid()
            for step in range(SLOTS):
                index = (start + step) % SLOTS
                if self._pids[index] == 0:
                    slot = Slot(self, index)
                    slot.rest(IDLE)
                    self._pids[index] = os.getpid()
                    return slot
        raise RuntimeError(f"more than {SLOTS} processes and threads run jobs in this worker: start a second worker")

    def read(self, index: int) -> Occupied:
        values: list[Any] = list(_SLOT.unpack_from(self._memory, _HEADER + index * _SIZE))
        values[-1] = uuid.UUID(bytes=values[-1])
        return Occupied(index, self._pids[index], *values)

    def occupied(self) -> list[Occupied]:
        """The slots of all processes, also of those that wait."""
        return [self.read(index) for index, pid in enumerate(self._pids.tolist()) if pid]

    def is_busy(self, pid: int) -> bool:
        """Whether the process has jobs."""
        start = 61 * pid
        for step in range(16):
            index = (start + step) % SLOTS
            if self._pids[index] == pid:
                return bool(struct.unpack_from("<q", self._memory, _HEADER + index * _SIZE)[0] != IDLE)
        return False

    def has_idle(self) -> bool:
        """Whether a process waits for work."""
        return any(slot.phase == IDLE for slot in self.occupied())

    def text(self, slot: Occupied) -> dict[str, Any]:
        """What the process says of its job, for people; empty if it has another one by now."""
        start = _HEADER + slot.index * _SIZE + _SLOT.size
        (length,) = _TEXT.unpack_from(self._memory, start)
        text = self._memory[start + _TEXT.size : start + _TEXT.size + length]
        try:
            about: dict[str, Any] = json.loads(text)
        except ValueError:
            return {}
        return about if about.get("id") == str(slot.job) else {}

    def clear(self, slot: Occupied) -> None:
        self._pids[slot.index] = 0

    def wipe(self) -> None:
        self._memory[16:_QUEUES_AT] = bytes(_QUEUES_AT - 16)
        for slot in self.occupied():
            self.clear(slot)


class Slot:
    """What one process, or one thread, shows of itself."""

    def __init__(self, board: Board, index: int) -> None:
        self._pids = board._pids
        self._index = index
        self._memory = board._memory
        self._offset = _HEADER + index * _SIZE
        self.phase = IDLE
        #: On the monotonic clock; 0: no limit.
        self.soft_at = 0.0

    def rest(self, phase: int, batch: int = 0) -> None:
        """The process has no job: it waits, or claims, or is between two."""
        self.phase = phase
        _SLOT.pack_into(self._memory, self._offset, phase, 0, 0, batch, 0.0, 0.0, 0.0, bytes(16))

    def name(
        self, job: uuid.UUID, lease: int, token: int, batch: int, soft: float | None, hard: float | None, text: bytes
    ) -> None:
        """The process is about to run the job. Limits are in seconds from now."""
        now = time.monotonic()
        self.phase = NAMED
        self.soft_at = now + soft if soft else 0.0
        hard_at = now + hard if hard else 0.0
        start = self._offset + _SLOT.size
        text = text[:_TEXT_MOST]
        _TEXT.pack_into(self._memory, start, len(text))
        self._memory[start + _TEXT.size : start + _TEXT.size + len(text)] = text
        values = (NAMED, lease, token, batch, now, self.soft_at, hard_at, job.bytes)
        _SLOT.pack_into(self._memory, self._offset, *values)

    def retoken(self, token: int) -> None:
        """The job has a token of its own. What waits behind it keeps that of the claim."""
        struct.pack_into("<q", self._memory, self._offset + 16, token)

    @contextmanager
    def body(self) -> Iterator[None]:
        """The process is in the body: only now a soft time limit strikes."""
        self._enter(BODY)
        try:
            yield
        finally:
            self._enter(NAMED)

    def _enter(self, phase: int) -> None:
        self.phase = phase
        struct.pack_into("<q", self._memory, self._offset, phase)

    def free(self) -> None:
        self.phase = IDLE
        self._pids[self._index] = 0


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
