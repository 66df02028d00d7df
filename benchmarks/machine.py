"""Describe the machine that the figures come from, without anything that identifies it."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any


def describe(directory: Path) -> dict[str, Any]:
    """
    Parameters:
        directory: a folder on the disk of the databases.
    """
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _first("/proc/cpuinfo", r"model name\s*:\s*(.+)") or platform.machine(),
        "memory_gb": round(int(_first("/proc/meminfo", r"MemTotal:\s*(\d+)") or 0) / 1024**2),
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "load_before": round(os.getloadavg()[0], 2),
        "sync_us": sync_time(directory),
    }


def sync_time(directory: Path, times: int = 200) -> int:
    """The microseconds to write 8 kB and wait for the disk. A commit waits at least as long."""
    path = directory / "sync"
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.write(file, bytes(8192))
        os.fsync(file)
        found = []
        for _ in range(times):
            began = time.perf_counter()
            os.pwrite(file, os.urandom(8192), 0)
            os.fdatasync(file)
            found.append(time.perf_counter() - began)
    finally:
        os.close(file)
        path.unlink()
    return round(1e6 * median(found))


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Those of this Python, and of the packages that it has."""
    found = {"Python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _first(path: str, pattern: str) -> str | None:
    match = re.search(pattern, Path(path).read_text())
    return match.group(1).strip() if match else None


if __name__ == "__main__":
    sys.stdout.write(json.dumps(versions(sys.argv[1:])))
