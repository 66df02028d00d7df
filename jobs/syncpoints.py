"""Named points at which a test can kill, pause or wait. In production each is one comparison with None.

``JOBS_SYNC_POINTS="before_commit=kill,before_ring=pause"`` together with ``JOBS_SYNC_DIR`` arms points in the processes
that inherit the two variables. The first process to arrive leaves ``<dir>/<point>.reached``; then it is killed
(``kill``: SIGKILL) or stopped (``stop``: SIGSTOP), or waits until the file ``<dir>/<point>.go`` exists (``pause``).
"""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

POINTS = """
before_claim after_claim before_call after_call after_sent before_commit after_completion after_commit before_ring
before_adopt after_adopt
""".split()

_hook: Callable[[str], None] | None = None


def reach(point: str) -> None:
    """Say that execution is at ``point``."""
    if _hook is not None:
        _hook(point)


def is_armed(point: str) -> bool:
    """Whether a test waits for this point: two steps that go in one message to the database are done apart then."""
    return _hook is not None and getattr(_hook, "point", point) == point


def arm(hook: Callable[[str], None] | None) -> None:
    """Call ``hook(point)`` at every point from now on; None disarms."""
    global _hook
    _hook = hook


def _arm(spec: str, directory: Path) -> None:
    actions = dict(item.split("=", 1) for item in spec.split(","))
    if unknown := set(actions) - set(POINTS):
        raise ValueError(f"JOBS_SYNC_POINTS names unknown points {sorted(unknown)}; the points are {', '.join(POINTS)}")

    def hook(point: str) -> None:
        action = actions.get(point)
        if action is None:
            return
        try:
            (directory / f"{point}.reached").open("x").write(str(os.getpid()))
        except FileExistsError:
            return
        if action == "pause":
            while not (directory / f"{point}.go").exists():
                time.sleep(0.01)
        else:
            os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGSTOP)

    arm(hook)


if points := os.environ.get("JOBS_SYNC_POINTS"):
    _arm(points, Path(os.environ["JOBS_SYNC_DIR"]))
