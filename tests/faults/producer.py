"""A process that only enqueues, as a web server does; to be killed between its COMMIT and its publish, or paused."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.faults.process import Process
from tests.helpers import harness
from tests.helpers.servers import die_with_parent

#: What it runs; the imports need Django to be set up.
PROGRAM = """
import django
django.setup()
import shop.celery
# Before the ledger: it reads the tasks of the running test's file, and that file needs the ledger.
import tests.tasks
from tests.faults.ledger import Ledger
Ledger().enqueue({jobs}, pace={pace}, **{options})
"""


class Producer(Process):
    """Enqueues ``jobs`` through a ledger of its own, in transactions with business rows, and ends.

    ``options`` are those of ``apply_async``: ``Producer(50, options={"countdown": 2})``. ``pace`` is how many jobs in
    a second, at most; by default as many as it can.
    """

    def __init__(
        self,
        jobs: int = 300,
        *,
        pace: float | None = None,
        options: Mapping[str, Any] | None = None,
        sync: str = "",
        **env: str,
    ) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="jobs-producer-"))
        if sync:
            env |= {"JOBS_SYNC_POINTS": sync, "JOBS_SYNC_DIR": str(self.directory)}
        self.log = self.directory / "log"
        with self.log.open("ab") as log:
            program = PROGRAM.format(jobs=jobs, pace=pace, options=dict(options or {}))
            self.process = subprocess.Popen(
                die_with_parent(sys.executable, "-c", program),
                stdout=log,
                stderr=log,
                env=harness.environment(**env),
                cwd=harness.ROOT,
            )
        super().__init__(self.process.pid)

    def reached(self, point: str) -> None:
        harness.wait_reached(self.directory, point)

    def wait(self, timeout: float = 60) -> int:
        """Wait for its end; the exit code, -9 if it was killed."""
        code = self.process.wait(timeout)
        assert code in (0, -9), self.log.read_text(errors="replace")[-3000:]
        return code

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()
        self.process.wait()
        if exc[0] is not None:
            sys.stderr.write(f"\n--- producer {self.pid}, {self.log} ---\n{self.log.read_text()[-3000:]}\n")
