"""Kill, stop or pause a process at a named point of ``jobs``, as the demo and the tests do.

``JOBS_SYNC_POINTS="before_commit=kill,before_notify=pause"`` together with ``JOBS_SYNC_DIR`` arms points in the
processes that inherit the two variables. The first process to arrive leaves ``<dir>/<point>.reached``; then it is
killed (``kill``: SIGKILL) or stopped (``stop``: SIGSTOP), or waits until the file ``<dir>/<point>.go`` exists
(``pause``). ``before_commit@3=kill`` is about the third to arrive.
"""

import os
import signal
import time
from pathlib import Path

from jobs.conf import syncpoints

POINTS = """
before_claim after_claim before_call after_call after_sent before_commit after_completion after_commit before_notify
before_receive after_receive before_tick after_tick before_relay after_relay before_publish after_publish before_store
after_store before_step after_step before_suspend after_suspend before_look
""".split()


def arm(spec: str, directory: Path) -> None:
    said = dict(item.split("=", 1) for item in spec.split(","))
    actions = {at.partition("@")[0]: (action, int(at.partition("@")[2] or 1)) for at, action in said.items()}
    if unknown := set(actions) - set(POINTS):
        raise ValueError(f"JOBS_SYNC_POINTS names unknown points {sorted(unknown)}; the points are {', '.join(POINTS)}")

    def hook(point: str) -> None:
        action, number = actions.get(point, ("", 0))
        if not _is_arrival(number, directory, point):
            return
        (directory / f"{point}.reached").write_text(str(os.getpid()))
        if action == "pause":
            while not (directory / f"{point}.go").exists():
                time.sleep(0.01)
        else:
            os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGSTOP)

    syncpoints.arm(hook)


def _is_arrival(number: int, directory: Path, point: str) -> bool:
    """Whether this is the one that is meant, of all processes."""
    for each in range(1, number + 1):
        try:
            (directory / f"{point}.{each}").open("x").close()
        except FileExistsError:
            continue
        return each == number
    return False
