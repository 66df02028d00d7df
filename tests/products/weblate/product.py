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

from django.conf import settings

from tests.helpers.servers import Missing, Redis, Server, die_with_parent

VERSION = "2026.10.1"
#: What `pip install "weblate[postgres]"` takes with it.
REQUIREMENTS = [f"weblate[postgres]=={VERSION}"]
HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "django-transactional-jobs" / "products"

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


def environment() -> Path:
    """The environment's folder of programs; :class:`Missing` with the reason if it cannot be made."""
    if given := os.environ.get("JOBS_TEST_WEBLATE"):
        return Path(given) / "bin"
    folder = CACHE / f"weblate-{VERSION}"
    done = folder / "done"
    if not done.exists():
        python = _python()
        shutil.rmtree(folder, ignore_errors=True)
        for command in (
            [python, "-m", "venv", str(folder)],
            [str(folder / "bin/pip"), "install", "-q", *REQUIREMENTS, str(ROOT)],
        ):
            made = subprocess.run(command, capture_output=True, text=True, check=False)
            if made.returncode:
                raise Missing(f"Weblate cannot be installed: {' '.join(command)}: {made.stderr[-1000:]}")
        done.touch()
    return folder / "bin"


def _python() -> str:
    """A Python that Weblate runs on."""
    if sys.version_info >= (3, 12):
        return sys.executable
    pyenv = sorted((Path.home() / ".pyenv" / "versions").glob("3.1[2-4].*/bin/python"), reverse=True)
    found = [path for name in ("3.14", "3.13", "3.12") if (path := shutil.which(f"python{name}"))] + pyenv
    for path in found:
        if subprocess.run([path, "-c", "import sys; assert sys.version_info >= (3, 12)"], check=False).returncode == 0:
            return str(path)
    raise Missing("Weblate needs Python 3.12 or newer")


class Site:
    """An installation of Weblate: ``stock``, or ``jobs`` as in ``site/weblate_jobs.py``."""

    def __init__(self, kind: str, folder: Path, redis: Redis) -> None:
        self.kind, self.folder, self.bin = kind, folder, environment()
        self.database = f"products_weblate_{kind}"
        self.redis = redis.url.removesuffix("/0")
        (folder / "data").mkdir(parents=True)

    def variables(self, **more: str) -> dict[str, str]:
        given = settings.DATABASES["default"]
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "DATABASE_URL"))},
            "DJANGO_SETTINGS_MODULE": f"weblate_{self.kind}",
            "PYTHONPATH": os.pathsep.join([str(HERE / "site"), str(ROOT)]),
            "PATH": os.pathsep.join([str(self.bin), os.environ["PATH"]]),
            "WEBLATE_DATA": str(self.folder / "data"),
            "WEBLATE_REDIS": self.redis,
            "WEBLATE_DATABASE": self.database,
            "WEBLATE_USER": str(given["USER"]),
            "WEBLATE_PASSWORD": str(given["PASSWORD"]),
            "WEBLATE_HOST": str(given["HOST"]),
            "WEBLATE_PORT": str(given["PORT"]),
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

    def sql(self, *statements: str) -> None:
        import psycopg

        given = settings.DATABASES["default"]
        options = {"host": given["HOST"], "port": given["PORT"], "user": given["USER"], "password": given["PASSWORD"]}
        with psycopg.connect(dbname="postgres", autocommit=True, **options) as session:
            for each in statements:
                session.execute(each)  # type: ignore[call-overload]

    def migrate(self) -> None:
        """A database of Weblate's own migrations, which take minutes: once for a server and a release."""
        stock = f"products_weblate_{VERSION.replace('.', '_')}"
        import psycopg

        try:
            self.sql(f"CREATE DATABASE {stock}_unfinished")
        except psycopg.errors.DuplicateDatabase:
            self.sql(f"DROP DATABASE {stock}_unfinished WITH (FORCE)", f"CREATE DATABASE {stock}_unfinished")
        try:
            self.sql(f"DROP DATABASE IF EXISTS {self.database} WITH (FORCE)")
            self.sql(f"CREATE DATABASE {self.database} TEMPLATE {stock}")
        except psycopg.errors.InvalidCatalogName:
            unfinished = {"WEBLATE_DATABASE": f"{stock}_unfinished", "DJANGO_SETTINGS_MODULE": "weblate_stock"}
            self.run("weblate", "migrate", **unfinished)
            self.sql(f"ALTER DATABASE {stock}_unfinished RENAME TO {stock}")
            self.sql(f"CREATE DATABASE {self.database} TEMPLATE {stock}")
        self.sql(f"DROP DATABASE IF EXISTS {stock}_unfinished")
        # Ours, and after it Weblate writes its settings of git into the folder of data.
        self.run("weblate", "migrate")

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
        self.migrate()
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
