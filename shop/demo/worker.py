"""A real ``celery -A shop worker``, or that of another service, in a process group of its own."""

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
        # What is killed leaves temporary files behind: in the directory, they go with it.
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
        """SIGKILL to the whole group: nobody is left to say goodbye."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()

    def ask_to_stop(self) -> None:
        """SIGTERM to the main process: a warm shutdown, as a deploy does it."""
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
