"""Weblate from the index in an environment of its own, its servers, and its flows run there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.helpers.servers import Postgres, Redis, Server, die_with_parent

VERSION = "2026.10.1"
REQUIREMENT = f"weblate[postgres]=={VERSION}"
HERE = Path(__file__).parent
ROOT = HERE.parents[2]

#: The functions of ``flows.py``, in their order.
FLOWS = re.findall(r"^    (\w+),$", (HERE / "flows.py").read_text().partition("\nFLOWS = [")[2].partition("]")[0], re.M)
FILES = {
    "locale/app.pot": ("", "", ""),
    "locale/de.po": ("de", "", ""),
    "locale/cs.po": ("cs", "Ahoj", ""),
    "other/app.pot": ("", "", ""),
    "other/de.po": ("de", "", ""),
}
PO = """msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\\n"
"Content-Transfer-Encoding: 8bit\\n"
"Language: {}\\n"

msgid "Hello"
msgstr "{}"

msgid "Thank you"
msgstr "{}"
"""


class GitDaemon(Server):
    """A host of repositories: ``demo.git`` has a German and a Czech translation of two strings."""

    name = "git"

    def prepare(self) -> None:
        work = self.directory / "first"
        for name, words in FILES.items():
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).write_text(PO.format(*words))
        who = ["-c", "user.name=Dev", "-c", "user.email=dev@example.com"]
        for command in (["init", "-q", "-b", "main"], ["add", "-A"], [*who, "commit", "-qm", "The first"]):
            subprocess.run(["git", *command], cwd=work, check=True)
        subprocess.run(["git", "clone", "-q", "--bare", str(work), str(self.remote)], check=True)

    @property
    def remote(self) -> Path:
        return self.directory / "demo.git"

    @property
    def url(self) -> str:  # type: ignore[override]
        return f"git://127.0.0.1:{self.port}/demo.git"

    def command(self) -> list[str]:
        options = ["--reuseaddr", "--export-all", "--enable=receive-pack", "--listen=127.0.0.1"]
        return die_with_parent("git", "daemon", *options, f"--port={self.port}", f"--base-path={self.directory}")


def newer_python() -> str | None:
    """A Python that Weblate runs on."""
    if sys.version_info >= (3, 12):
        return sys.executable
    pyenv = sorted((Path.home() / ".pyenv" / "versions").glob("3.1[2-4].*/bin/python"), reverse=True)
    found = [path for name in ("3.14", "3.13", "3.12") if (path := shutil.which(f"python{name}"))] + [*map(str, pyenv)]
    asks = "import sys; assert sys.version_info >= (3, 12)"
    return next((path for path in found if subprocess.run([path, "-c", asks], check=False).returncode == 0), None)


class Site:
    """An installation of Weblate: ``stock``, or ``jobs`` as in ``site/weblate_jobs.py``."""

    def __init__(self, kind: str, folder: Path, redis: Redis, postgres: Postgres, programs: Path) -> None:
        self.kind, self.folder, self.bin, self.postgres = kind, folder, programs, postgres
        self.database = f"products_weblate_{kind}"
        self.redis = redis.url.removesuffix("/0")
        (folder / "data").mkdir(parents=True)

    def variables(self, **more: str) -> dict[str, str]:
        where = urlsplit(self.postgres.url)
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "DATABASE_URL"))},
            "DJANGO_SETTINGS_MODULE": f"weblate_{self.kind}",
            "PYTHONPATH": os.pathsep.join([str(HERE / "site"), str(ROOT)]),
            "PATH": os.pathsep.join([str(self.bin), os.environ["PATH"]]),
            "WEBLATE_DATA": str(self.folder / "data"),
            "WEBLATE_REDIS": self.redis,
            "WEBLATE_DATABASE": self.database,
            "WEBLATE_USER": str(where.username),
            "WEBLATE_HOST": str(where.hostname),
            "WEBLATE_PORT": str(where.port),
            **more,
        }

    def run(self, *command: str, timeout: float = 900, **variables: str) -> str:
        """The program's output, from the folder of the installation."""
        made = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=self.folder,
            env=self.variables(**variables),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert made.returncode == 0, (command, made.stdout[-3000:], made.stderr[-5000:])
        return made.stdout

    def migrate(self, template: str | None = None) -> None:
        """A database with Weblate's tables, and ours. ``template``: another one that has Weblate's."""
        self.postgres.create_database(self.database, template or "template1")
        # Weblate's take minutes. It also writes its settings of git into the folder of data then.
        self.run("weblate", "migrate", "-v", "0")

    def background(self, *command: str) -> subprocess.Popen:
        log = (self.folder / f"{command[0]}-{command[3]}.log").open("ab")
        return subprocess.Popen(
            die_with_parent(str(self.bin / command[0]), *command[1:]),
            cwd=self.folder,
            env=self.variables(),
            stdout=log,
            stderr=log,
        )

    def audit(self) -> list[dict[str, str]]:
        return json.loads(self.run("weblate", "jobs", "audit", "--json"))["findings"]

    def flows(self) -> dict[str, Any]:
        """What each flow has left, as ``flows.py`` says it."""
        said = self.folder / "flows.json"
        with ExitStack() as ending:
            daemon = GitDaemon()
            ending.callback(daemon.stop)
            queues = "celery,notify,memory,backup,translate"
            worker = ["-A", "weblate.utils", "worker", "-n", "w@test", "-c", "2", "-l", "info", "-Q", queues]
            commands = [["celery", *worker]]
            if self.kind == "stock":
                commands.append(["celery", "-A", "weblate.utils", "beat", "--pidfile="])
            for command in commands:
                process = self.background(*command)
                ending.callback(process.wait, 60)
                ending.callback(process.terminate)
            self.run("python", str(HERE / "flows.py"), str(said), str(daemon.remote), daemon.url)
        return json.loads(said.read_text())
