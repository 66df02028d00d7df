"""A process that a scenario kills, pauses and resumes."""

from __future__ import annotations

import contextlib
import os
import signal

from jobs.lifecycle.worker_state import is_alive


class Process:
    """A process by its id: a pool child, a supervisor, a server's backend."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def __repr__(self) -> str:
        return f"Process({self.pid})"

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    @property
    def is_alive(self) -> bool:
        return is_alive(self.pid)

    @property
    def parent(self) -> int:
        try:
            with open(f"/proc/{self.pid}/stat") as stat:
                return int(stat.read().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            return 0
