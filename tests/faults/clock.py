"""Machines whose clock is wrong."""

from __future__ import annotations

import glob
import os
from pathlib import Path

from tests.conftest import not_installed
from tests.helpers import harness

HERE = Path(__file__).parent


def clock(hours: float) -> dict[str, str]:
    """The environment of a process whose wall clock is so many hours ahead; time passes as fast as everywhere.

    ``Worker(**clock(+1))``, ``Producer(**clock(-1))``
    """
    found = glob.glob("/usr/lib/*/faketime/libfaketime.so.1")
    if not found:
        not_installed("libfaketime (Debian: faketime)")
    return {
        "LD_PRELOAD": found[0],
        "FAKETIME": f"{round(3600 * hours):+d}s",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE / "skewed"), str(harness.ROOT)]),
    }
