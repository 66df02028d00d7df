"""The core's own tests where extensions are gone: ``python -m tests.house --without NAME`` (or ``all``).

In a copy of the repository their folders are really moved away, and so are the tests of all extensions. What a test of
the core needs of an extension belongs to the extension's tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from jobs import extensions
from tests.helpers.servers import Missing, Redis, die_with_parent

ROOT = Path(__file__).resolve().parents[2]

ALL = "all"

SKIPPED = shutil.ignore_patterns(".*", "__pycache__", "*.sqlite3*", "build", "*.egg-info", "var")


def names() -> dict[str, Path]:
    """The extensions by their short names, and where each is in the repository."""
    return {folder.name: folder.relative_to(ROOT) for folder in extensions.folders().values()}


def run(name: str, tests: Sequence[str] = ("tests/core",), **options: object) -> subprocess.CompletedProcess:
    """Run the tests without one extension, or without all; ``options`` are those of ``subprocess.run``."""
    gone = names() if name == ALL else {name: names()[name]}
    with tempfile.TemporaryDirectory(prefix="jobs-without-") as directory:
        copy = Path(directory, "repository")
        shutil.copytree(ROOT, copy, ignore=SKIPPED)
        for each, folder in gone.items():
            shutil.move(copy / folder, Path(directory, each))
        for folder in (copy / "tests" / "contrib").glob("*/"):
            # A worker would import their tasks, and some have options of extensions that are gone.
            if not any(f"/{folder.name}/" in each for each in tests):
                shutil.rmtree(folder)
        env = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.helpers.bare",
            "PYTHONPATH": str(copy),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [
            sys.executable,
            "-m",
            "pytest",
            "--ds=tests.helpers.bare",
            "-q",
            "-n2",
            "-p",
            "no:cacheprovider",
            *tests,
        ]
        if "JOBS_TEST_REQUIRE_SERVERS" in os.environ:
            # As .ci/run does it: the machine may be busy, and what fails three times has failed.
            command += ["--reruns", "2", "--reruns-delay", "5"]
        with ExitStack() as stack:
            if "transport" in gone:
                # The database is a broker by that extension.
                with suppress(Missing):
                    broker = Redis()
                    stack.callback(broker.stop)
                    env["JOBS_TEST_BROKER"] = broker.url
            return subprocess.run(die_with_parent(*command), cwd=copy, env=env, **options)  # type: ignore[call-overload]
