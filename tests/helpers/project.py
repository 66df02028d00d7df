"""A new project, as a newcomer makes it, and what a real worker makes of its first job."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.helpers.harness import ROOT
from tests.helpers.servers import die_with_parent, wait_for

PYTHON = re.compile(r"^```python\n(.*?)^```", re.M | re.S)

#: Call the view of the README; print the job's id.
SIGN_UP = """
from django.test import RequestFactory
from accounts.views import sign_up
print(sign_up(RequestFactory().post("/", {"name": "ann", "email": "ann@example.com"})).content.decode())
"""


def snippets(page: Path) -> list[str]:
    """The Python of a page."""
    return PYTHON.findall(page.read_text())


class Project:
    """A new project, with nothing but its database.

    Parameters:
        library: where the package is that it uses.
    """

    def __init__(self, directory: Path, database: str = "", library: Path = ROOT) -> None:
        self.directory = directory
        unset = ("DJANGO_", "CELERY_", "JOBS_", "DATABASE_URL", "CACHE_URL")
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(unset)}
        self.env["PYTHONPATH"] = str(library)
        self.run("-m", "django", "startproject", "proj", ".")
        self.manage("startapp", "accounts")
        if database:
            with (directory / "proj" / "settings.py").open("a") as settings:
                settings.write(
                    f"import dj_database_url\nDATABASES = {{'default': dj_database_url.parse({database!r})}}\n"
                )

    def follow(self, page: Path, package: str = "jobs") -> None:
        """Do what the page says, with the package's name."""
        for source in snippets(page):
            if named := re.match(r"# (\w+/\w+\.py)(, at the end)?", source):
                with (self.directory / named[1]).open("a" if named[2] else "w") as file:
                    file.write(re.sub(r"\bjobs(?=[.\"])", package, source))

    def run(self, *command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], cwd=self.directory, env=self.env, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def manage(self, *command: str) -> str:
        return self.run("manage.py", *command)

    def outcome(self, key: str, package: str = "jobs") -> str:
        """What a real worker makes of the job: its state at the end, and the worker's log."""
        log = self.directory / "log"
        command = die_with_parent(sys.executable, "-m", "celery", "-A", "proj", "worker")
        with log.open("wb") as out:
            worker = subprocess.Popen(
                command, cwd=self.directory, env=self.env, stdout=out, stderr=out, start_new_session=True
            )
        try:
            wait = f"from {package}.models import Job; job = Job.objects.get(pk={key!r}); job.wait(timeout=60); "
            wait += f"print(Job.objects.get(pk={key!r}).state)"
            state = self.manage("shell", "-v0", "-c", wait)
            worker.terminate()
            wait_for(lambda: worker.poll() is not None, 40, "the worker has stopped")
        finally:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait()
        return state.strip() + log.read_text(errors="replace")
