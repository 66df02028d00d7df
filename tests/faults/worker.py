"""A worker with names for its processes."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.faults.process import Process
from tests.helpers import harness
from tests.helpers.servers import wait_for


class Worker(harness.Worker):
    """``celery -A shop worker``; what it logged last is shown if the scenario fails.

    ``Worker("-P", "threads")`` passes options, ``Worker(sync="before_commit=kill")`` arms sync points, and
    ``Worker(CELERY_BROKER_URL=link.url)`` or ``Worker(DATABASE_URL=link.url)`` puts a proxy in between.
    """

    def pause(self) -> None:
        """SIGSTOP to all its processes, as when a machine is suspended."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    @property
    def main(self) -> Process:
        return Process(self.process.pid)

    @property
    def supervisor(self) -> Process:
        return wait_for(self._supervisor, 10, "the worker has a supervisor")

    @property
    def watchdog(self) -> Process:
        return Process(self.supervisor.parent)

    @property
    def children(self) -> list[Process]:
        """The processes of the pool."""
        watchdog = self.watchdog.pid
        children = (Process(pid) for pid in self.pids() if pid != watchdog)
        return [child for child in children if child.parent == self.process.pid]

    def reached(self, point: str) -> Process:
        """Wait until a process arrived at the sync point."""
        return Process(harness.wait_reached(self.directory, point))

    def go(self, point: str) -> None:
        """Let the process that pauses at the sync point go on."""
        Path(self.directory, f"{point}.go").touch()

    def said(self, text: str, timeout: float = 20.0) -> None:
        """Wait until the worker has logged ``text``."""
        wait_for(lambda: text in self.text(), timeout, f"the worker said {text!r}")

    def _supervisor(self) -> Process | None:
        """The grandchild: its parent is the watchdog, and not the main process."""
        pids = self.pids()
        for process in map(Process, pids):
            if process.parent in pids and process.parent != self.process.pid:
                return process
        return None

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        if exc[0] is not None:
            sys.stderr.write(f"\n--- worker {self.process.pid}, {self.log} ---\n{self.text()[-3000:]}\n")


@contextmanager
def workers(count: int = 2, *options: str, **more: Any) -> Iterator[list[Worker]]:
    """Several that start side by side; each consumes as soon as it is up, and nobody waits for that."""
    with ExitStack() as stack:
        yield [stack.enter_context(Worker(*options, wait=False, **more)) for _ in range(count)]
