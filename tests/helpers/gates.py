"""Files by which a test and the bodies of its jobs wait for each other."""

import os
import time
from pathlib import Path


def wait_for_file(path: str, timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not Path(path).exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.02)


def once_only(path: str) -> bool:
    """True in the first process that asks."""
    try:
        Path(path).open("x").write(str(os.getpid()))
    except FileExistsError:
        return False
    return True
