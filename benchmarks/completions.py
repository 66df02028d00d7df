"""What ran, and when. All processes append to one file, 24 bytes for each completion."""

from __future__ import annotations

import os
import struct
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

_ROW = struct.Struct("qqq")


class Completion(NamedTuple):
    number: int
    #: Nanoseconds of the monotonic clock, which all processes share.
    at: int
    pid: int


def path() -> Path:
    return Path(os.environ["BENCH_COMPLETIONS"])


def record(number: int) -> None:
    """Append one completion. The kernel writes 24 bytes as a whole."""
    pid = os.getpid()
    os.write(_file(pid), _ROW.pack(number, time.monotonic_ns(), pid))


@cache
def _file(pid: int) -> int:
    return os.open(path(), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def count() -> int:
    try:
        return path().stat().st_size // _ROW.size
    except FileNotFoundError:
        return 0


def read(skip: int = 0) -> list[Completion]:
    """
    Parameters:
        skip: leave out so many, which are known already.

    Returns:
        The completions, in the order in which they were written.
    """
    if not count():
        return []
    with path().open("rb") as file:
        file.seek(skip * _ROW.size)
        data = file.read()
    return [Completion(*row) for row in _ROW.iter_unpack(data[: len(data) // _ROW.size * _ROW.size])]


def rate(found: list[Completion], trim: float = 0.0) -> float | None:
    """Completions per second between the first and the last one; None for fewer than two.

    Parameters:
        trim: the part to leave out at each end.
    """
    times = sorted(each.at for each in found)
    times = times[int(len(times) * trim) : len(times) - int(len(times) * trim)]
    if len(times) < 2 or times[-1] == times[0]:
        return None
    return (len(times) - 1) / ((times[-1] - times[0]) / 1e9)
