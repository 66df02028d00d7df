"""Processes: their descendants, their use of the processor and of memory, and their end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NoReturn

from tests.helpers.servers import family

_TICKS = os.sysconf("SC_CLK_TCK")
_PR_SET_CHILD_SUBREAPER = 36


def run(program: Callable[[], int]) -> int:
    """Run a program so that it can clean up when it is told to end; return the exit status."""

    def end(number: int, frame: object) -> NoReturn:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    # A shell makes its background jobs ignore this signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return program()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 128 + signal.SIGINT


@contextlib.contextmanager
def adopting_orphans() -> Iterator[None]:
    """In this block orphans among our descendants become our children, so that none is lost from sight. Only
    :func:`kill` waits for them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _prctl(*arguments: int) -> None:
    ctypes.CDLL(None).prctl(*arguments, 0, 0, 0)


def descendants(keep: Iterable[int] = ()) -> list[int]:
    """The descendants of this process, without ``keep`` and the descendants of those."""
    found = family(os.getpid())[1:]
    # Race: a server forks at this moment. What it forked before is found here as well.
    kept = {member for pid in keep for member in family(pid)}
    return [pid for pid in found if pid not in kept]


def kill(keep: Iterable[int] = (), timeout: float = 10.0) -> None:
    """End all descendants of this process with SIGKILL, and wait for them."""
    deadline = time.monotonic() + timeout
    while (pids := descendants(keep)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            # We can wait only for our own children. The others become ours later.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)


def cpu_seconds(pids: Iterable[int]) -> float:
    """What these processes and their descendants have used so far, also those that have ended and were waited for.

    Living processes are counted in nanoseconds: the 10 ms steps of ``/proc/PID/stat`` are too coarse for an idle one.
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
    """The bytes in memory of these processes and their descendants. Shared memory counts once (PSS)."""
    total = 0
    for member in [member for pid in pids for member in family(pid)]:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{member}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += 1024 * int(line.split()[1])
    return total
