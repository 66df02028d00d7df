"""A real ``celery -A shop worker``, or one of another service, in a process group of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from django.conf import settings


class Worker:
    def __init__(self, name: str, directory: Path, app: str = "shop", **env: str) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        command = [sys.executable, "-m", "celery", "-A", app, "worker", "-l", "INFO", "-c", "2", "-n", f"{name}@%h"]
        command += ["--without-gossip", "--without-mingle"]
        # A killed process leaves temporary files. They are in this directory, and are removed with it.
        env = {**os.environ, "LOG_LEVEL": "INFO", "TMPDIR": str(directory), **env}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=settings.BASE_DIR,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        (directory / f"{name}.pid").write_text(str(self.pid))

    @property
    def pid(self) -> int:
        return self.process.pid

    def is_running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """Send SIGKILL to the whole process group: no process can clean up."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the main process: a warm shutdown, as in a deploy."""
        if self.is_running():
            self.process.terminate()

    def wait(self, timeout: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout)

    def lines(self) -> list[str]:
        return self.log.read_text(errors="replace").splitlines()


def kill_orphans(directory: Path) -> None:
    """End the processes of a demo that was itself killed."""
    for file in directory.glob("*.pid"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(file.read_text()), signal.SIGKILL)
