"""What each process of this worker does at the moment, in memory that they share.

A process writes which job it runs, with its time limits; the supervisor reads. So the node knows whose death took which
job along, which body runs too long, and which process is busy, without a statement per job. The memory is made when
this module is imported, before the worker forks.
"""

from __future__ import annotations

import ast
import json
import mmap
import os
import struct
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import compress
from typing import Any

#: Bytes of the queues that the worker consumes, as JSON, and of the limits that were set by hand; and where they begin.
_DOCUMENT = 1 << 20
_QUEUES_AT, _LIMITS_AT = 96, 96 + 16 + _DOCUMENT

#: Where the pids of all slots stand, side by side: one read finds the slots in use. Behind them: the start times.
_PIDS = _LIMITS_AT + 16 + _DOCUMENT

#: How often a document is read again while another process writes it, a millisecond apart.
_READS = 50

#: Phase, lease, token of the row, token of its claim, began, soft limit, hard limit, job; then a
#: text for people.
_SLOT = struct.Struct("<qqqqddd16s")
_TEXT = struct.Struct("1000s")
_SIZE = _SLOT.size + _TEXT.size

#: A process waits; it claims, or is between two jobs; it has a job; it is in the body; the body, one of several of the
#: process, waits for something.
IDLE, BUSY, NAMED, BODY, AWAITS = range(5)

#: More processes and threads than one worker has. A process's slot is at a place given by its pid, or soon after it.
MAX_PROCESSES = 1024

#: Behind them are the slots for processes that have several bodies. Each takes a block of slots.
MAX_SHARED = 8192
MAX_SLOTS = MAX_PROCESSES + MAX_SHARED

_STARTS = _PIDS + 8 * MAX_SLOTS
_HEADER = _STARTS + 8 * MAX_SLOTS

#: Why a body should end.
CANCELLED, REVOKED, KILLED = "Cancelled", "Revoked", "Killed"

#: Seconds that a job runs until the rows behind it are given back; the age of a claim at which its rows are renewed.
LONG, OLD = 2.0, 1.0


@dataclass(frozen=True, slots=True)
class Occupied:
    """A slot as it was read: the process ``pid`` has ``job`` under ``lease``. Times are of the monotonic clock."""

    index: int
    pid: int
    #: When the process began, as the system counts it: after its death the pid may be another one's.
    start: int
    phase: int
    lease: int
    token: int
    #: The token of the claim whose other rows wait behind this one; 0: none does.
    batch: int
    began: float
    soft_at: float
    hard_at: float
    job: uuid.UUID

    @property
    def is_dead(self) -> bool:
        """Whether the process is dead: then no process runs the job."""
        return not is_alive(self.pid, self.start)

    def signal(self, number: int) -> None:
        """Signal the process, if it is not dead: after its death the pid may be another process's."""
        if not self.is_dead:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    @property
    def is_shared(self) -> bool:
        """Whether the process has bodies beside this one."""
        return self.index >= MAX_PROCESSES

    @property
    def has_job(self) -> bool:
        return self.phase >= NAMED

    @property
    def holds_up(self) -> bool:
        """Whether something waits behind a body that takes long."""
        return bool(self.has_job and self.batch and time.monotonic() - self.began > LONG)


def _shared(kind: str, offset: int) -> Any:
    """What stands at this place of the worker state's memory, written and read in one step."""
    place = struct.Struct(kind)

    def read(worker_state: WorkerState) -> Any:
        return place.unpack_from(worker_state._memory, offset)[0]

    def write(worker_state: WorkerState, value: Any) -> None:
        place.pack_into(worker_state._memory, offset, value)

    return property(read, write)


class Text:
    """A text that one process writes and other ones read. Before it: its version, odd while it is written; its length.

    Race: a writer that dies in between leaves an odd version, and the next one writes over it.
    """

    _head = struct.Struct("<qq")

    def __init__(self, memory: mmap.mmap, at: int, most: int) -> None:
        self._memory, self.at, self.most = memory, at, most

    @property
    def version(self) -> int:
        return int(self._head.unpack_from(self._memory, self.at)[0])

    def write(self, text: bytes) -> None:
        version, begin = self.version | 1, self.at + self._head.size
        self._head.pack_into(self._memory, self.at, version, len(text))
        self._memory[begin : begin + len(text)] = text
        self._head.pack_into(self._memory, self.at, version + 1, len(text))

    def read(self) -> tuple[int, bytes | None]:
        """Its version and itself; None: it is written at this moment."""
        version, length = self._head.unpack_from(self._memory, self.at)
        begin = self.at + self._head.size
        text = self._memory[begin : begin + length]
        return version, text if version % 2 == 0 and version == self.version else None


class WorkerState:
    _node = _shared("16s", 0)
    #: On the machine's monotonic clock; 0: not yet.
    _heartbeat_at, _stop_at = _shared("d", 16), _shared("d", 24)
    #: Whether a stock task waits for a process: one that is between two jobs offers itself.
    stock_waits = _shared("?", 40)
    #: Whether the worker sends Celery's events (``-E``).
    wants_events = _shared("?", 41)
    #: Whether the worker was told to claim nothing more, and to finish what it runs.
    is_quiet = _shared("?", 42)
    #: Whether a process has taken a block of slots.
    has_blocks = _shared("?", 44)
    #: Whether jobs are held back somewhere.
    holds = _shared("?", 43)
    #: Until when claims step over all that is ready, because of limits; on the machine's monotonic clock.
    rests_until = _shared("d", 48)
    #: Seconds since the node's last beat was written; 0 if there was none (outside of a worker).
    silence = property(lambda self: time.monotonic() - at if (at := self._heartbeat_at) else 0.0)
    #: Seconds since the worker was told to stop; None if it was not. It outlives a supervisor that dies.
    stopping_for = property(lambda self: time.monotonic() - at if (at := self._stop_at) else None)

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _HEADER + MAX_SLOTS * _SIZE)
        self.pids = memoryview(self._memory)[_PIDS:_STARTS].cast("q")
        self._starts = memoryview(self._memory)[_STARTS:_HEADER].cast("q")
        self._lock = threading.Lock()
        #: The pids at the last look, as bytes, and the slots that had one.
        self._found: tuple[bytes, list[int]] = (b"", [])
        #: A file that processes lock to take turns.
        self._turn: Any = getattr(os, "memfd_create", lambda name: tempfile.mkstemp()[0])("jobs")
        self._queues = Text(self._memory, _QUEUES_AT, _DOCUMENT)
        self._limits = Text(self._memory, _LIMITS_AT, _DOCUMENT)
        #: The documents as this process has read them: the version and the value of each.
        self._known: dict[Text, tuple[int, Any]] = {self._queues: (0, []), self._limits: (0, {})}

    @property
    def node(self) -> uuid.UUID:
        """The id under which this worker claims; it changes when the node was declared dead."""
        return uuid.UUID(bytes=self._node)

    @node.setter
    def node(self, value: uuid.UUID) -> None:
        self._node = value.bytes

    def about(self, action: str, **more: Any) -> dict[str, Any]:
        """The fields of a line about this worker (see ``jobs.conf.logs``)."""
        return {"action": action, "node": str(self.node), **more}

    def note_heartbeat(self) -> None:
        self._heartbeat_at = time.monotonic()

    def note_stop(self) -> None:
        self._stop_at = self._stop_at or time.monotonic()

    @property
    def queues(self) -> list[str]:
        """The queues that the worker consumes."""
        return list(self._read(self._queues))

    @queues.setter
    def queues(self, names: list[str]) -> None:
        self._write(self._queues, sorted(names))

    @property
    def limits(self) -> dict[str, Any]:
        """What was set by hand, as the supervisor read it last."""
        return dict(self._read(self._limits))

    @limits.setter
    def limits(self, given: dict[str, Any]) -> None:
        self._write(self._limits, given)

    def _read(self, document: Text) -> Any:
        for _ in range(_READS):
            if document.version == self._known[document][0]:
                break
            version, text = document.read()
            if text is None:
                time.sleep(0.001)
            else:
                self._known[document] = version, json.loads(text)
        return self._known[document][1]

    def _write(self, document: Text, value: Any) -> None:
        text = json.dumps(value).encode()
        if len(text) > document.most:
            raise ValueError(
                f"{len(text)} characters are more than the {document.most} that the worker's processes share"
            )
        document.write(text)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A lock for one thread of one process at a time. The death of its process releases it."""
        # Callers run on Windows too, which has no fcntl; workers do not.
        import fcntl

        with self._lock:
            fcntl.lockf(self._turn, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._turn, fcntl.LOCK_UN)

    def take(self) -> ProcessState:
        """A slot for this process, or for a thread of it. A dead process keeps its slot until its job was finished."""
        with self.alone():
            # By its pid, so that it is found quickly (``is_busy``).
            for step in range(MAX_PROCESSES):
                index = (61 * os.getpid() + step) % MAX_PROCESSES
                if self.pids[index] == 0:
                    slot = ProcessState(self, index)
                    slot.occupy()
                    return slot
        raise RuntimeError(
            f"more than {MAX_PROCESSES} processes and threads run jobs in this worker: start a second worker"
        )

    def read(self, index: int) -> Occupied:
        values: list[Any] = list(_SLOT.unpack_from(self._memory, _HEADER + index * _SIZE))
        values[-1] = uuid.UUID(bytes=values[-1])
        return Occupied(index, self.pids[index], self._starts[index], *values)

    def occupied(self) -> list[Occupied]:
        """The slots of all processes, also of those that wait."""
        pids = self._memory[_PIDS : _STARTS if self.has_blocks else _PIDS + 8 * MAX_PROCESSES]
        if pids != (found := self._found)[0]:
            self._found = found = pids, [*compress(range(MAX_SLOTS), memoryview(pids).cast("q"))]
        return [self.read(index) for index in found[1]]

    def at_work(self) -> list[Occupied]:
        """The slots of processes that have jobs, or claim."""
        return [slot for slot in self.occupied() if slot.phase != IDLE]

    def has_work(self, pid: int) -> bool:
        """Whether the process has jobs, of whatever kind."""
        return self.is_busy(pid) or (self.has_blocks and any(slot.pid == pid for slot in self.at_work()))

    def is_busy(self, pid: int) -> bool:
        """Whether the process has jobs that keep it from other work."""
        for step in range(16):
            index = (61 * pid + step) % MAX_PROCESSES
            if self.pids[index] == pid:
                return bool(struct.unpack_from("<q", self._memory, _HEADER + index * _SIZE)[0] != IDLE)
        return False

    def text(self, slot: Occupied) -> dict[str, Any]:
        """What the process says of its job, for people; empty if it has another one by now."""
        [text] = _TEXT.unpack_from(self._memory, _HEADER + slot.index * _SIZE + _SLOT.size)
        try:
            about: dict[str, Any] = ast.literal_eval(text.rstrip(b"\0").decode())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            # The process writes at this moment.
            return {}
        return about if about.get("id") == str(slot.job) else {}

    def clear(self, slot: Occupied) -> None:
        self.pids[slot.index] = 0

    def wipe(self) -> None:
        """Forget the processes, the last beat, the stop, and what a person told the worker."""
        self._memory[16:48] = bytes(32)
        self._memory[_PIDS:_HEADER] = bytes(_HEADER - _PIDS)


class ProcessState:
    """What one process, or one thread, shows of itself.

    Parameters:
        start: when this process began (:func:`start_of`), if that is known.
    """

    def __init__(self, worker_state: WorkerState, index: int, start: int = 0) -> None:
        self._worker_state, self._start = worker_state, start
        self._pids = worker_state.pids
        self.index = index
        self._memory = worker_state._memory
        self._offset = _HEADER + index * _SIZE
        self.phase = IDLE
        #: On the monotonic clock; 0: no limit.
        self.began = self.soft_at = self.hard_at = 0.0

    def occupy(self) -> None:
        """The slot is this process's from now on."""
        self.rest(IDLE)
        # First, because the pid is what makes the slot a process's.
        self._worker_state._starts[self.index] = self._start or start_of(os.getpid())
        self._pids[self.index] = os.getpid()

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
        self.began, self.soft_at, self.hard_at = now, now + soft if soft else 0.0, now + hard if hard else 0.0
        _TEXT.pack_into(self._memory, self._offset + _SLOT.size, text)
        values = (NAMED, lease, token, batch, now, self.soft_at, self.hard_at, job.bytes)
        _SLOT.pack_into(self._memory, self._offset, *values)

    def limit(self, soft_at: float, hard_at: float) -> None:
        """Its limits on the monotonic clock; 0: there is none."""
        self.soft_at, self.hard_at = soft_at, hard_at
        struct.pack_into("<dd", self._memory, self._offset + 40, soft_at, hard_at)

    def retoken(self, token: int) -> None:
        """The job has a token of its own. What waits behind it keeps that of the claim."""
        struct.pack_into("<q", self._memory, self._offset + 16, token)

    def enter(self, phase: int) -> None:
        """The process enters its job's body (``BODY``), where a soft time limit strikes, or leaves it (``NAMED``)."""
        self.phase = phase
        struct.pack_into("<q", self._memory, self._offset, phase)

    def free(self) -> None:
        self.phase = IDLE
        self._pids[self.index] = 0


worker_state = WorkerState()
os.register_at_fork(after_in_child=lambda: setattr(worker_state, "_lock", threading.Lock()))


def dead(slots: Iterable[Occupied]) -> list[Occupied]:
    """Those whose process is dead. It looks once at each process, however many slots that has."""
    found = list(slots)
    gone = {process for process in {(slot.pid, slot.start) for slot in found} if not is_alive(*process)}
    return [slot for slot in found if (slot.pid, slot.start) in gone] if gone else []


def start_of(pid: int) -> int:
    """When the process began, in ticks since the system's start; 0 if it is dead, or the system does not tell.

    A zombie that its parent has not reaped is dead.
    """
    try:
        stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            fields = os.read(stat, 4096).rpartition(b")")[2].split()
        finally:
            os.close(stat)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])


def is_alive(pid: int, start: int = 0) -> bool:
    """Whether the process runs, or is stopped: the one that began at ``start``, if that is known, and no later one."""
    if (now := start_of(pid)) or os.path.exists("/proc/self/stat"):
        return now > 0 and start in (0, now)
    try:
        os.kill(pid, 0)
    except OSError as exc:
        return isinstance(exc, PermissionError)
    return True
