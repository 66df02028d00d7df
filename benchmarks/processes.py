"""Processes: what belongs to one, what it used of the processor and of memory, and its end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.servers import family

_TICKS = os.sysconf("SC_CLK_TCK")
_PR_SET_CHILD_SUBREAPER = 36


@contextlib.contextmanager
def adopting_orphans() -> Iterator[None]:
    """The orphans among our descendants become our children meanwhile, so that none is lost from sight. They are
    waited for by :func:`kill`, and by nobody else."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _prctl(*arguments: int) -> None:
    ctypes.CDLL(None).prctl(*arguments, 0, 0, 0)


def descendants(keep: Iterable[int] = ()) -> list[int]:
    """Of this process, without those of ``keep`` and theirs."""
    kept = {member for pid in keep for member in family(pid)}
    return [pid for pid in family(os.getpid())[1:] if pid not in kept]


def kill(keep: Iterable[int] = (), timeout: float = 10.0) -> None:
    """End all descendants of this process with SIGKILL, and wait for them."""
    deadline = time.monotonic() + timeout
    while (pids := descendants(keep)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            # Only our own children can be waited for; the others become ours.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)


def cpu_seconds(pids: Iterable[int]) -> float:
    """What the families of these processes used so far, with those members that have ended and were waited for.

    The living are counted in nanoseconds; ``/proc/PID/stat`` alone, in steps of 10 ms, is too coarse for what is idle.
    """
    return sum(_living(member) + _ended(member) for pid in pids for member in family(pid))


def _living(pid: int) -> float:
    total = 0
    for schedstat in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            total += int(schedstat.read_text().split()[0])
    return total / 1e9


def _ended(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[13]) + int(fields[14])) / _TICKS


def memory(pids: Iterable[int]) -> int:
    """Bytes in memory of the families of these processes; what several share counts once (PSS)."""
    total = 0
    for member in [member for pid in pids for member in family(pid)]:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{member}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += 1024 * int(line.split()[1])
    return total
