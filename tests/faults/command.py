"""``manage.py jobs`` in a process of its own, as a site runs it under its process manager."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests import harness
from tests.faults.process import Process
from tests.servers import die_with_parent


class Command(Process):
    """``Command("relay")``: ``manage.py jobs relay``, until it is killed."""

    def __init__(self, *arguments: str, **env: str) -> None:
        self.log = Path(tempfile.mkdtemp(prefix="jobs-command-")) / "log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                die_with_parent(sys.executable, "manage.py", "jobs", *arguments),
                stdout=log,
                stderr=log,
                env=harness.environment(**env),
                cwd=harness.ROOT,
            )
        super().__init__(self.process.pid)

    def kill(self) -> None:
        super().kill()
        self.process.wait()

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()
        if exc[0] is not None:
            sys.stderr.write(f"\n--- command {self.pid}, {self.log} ---\n{self.log.read_text()[-3000:]}\n")
