"""Packages of others, from the index and unchanged, on our task class: ``tests/strangers``, each file in a process."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.conftest import not_installed
from tests.helpers.harness import ROOT
from tests.helpers.servers import die_with_parent

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

STRANGERS = ROOT / "tests" / "strangers"


@pytest.fixture(scope="session")
def python() -> Path:
    """An interpreter that has what this one has, and the packages; kept until they or their bounds change."""
    requirements, ours = STRANGERS / "requirements.txt", sysconfig.get_path("purelib")
    state = hashlib.sha256(f"{requirements.read_text()} {ours} {sys.version}".encode()).hexdigest()[:12]
    directory = ROOT / "var" / f"strangers-{state}"
    made = directory / "bin" / "python"
    if not (directory / "complete").exists():
        shutil.rmtree(directory, ignore_errors=True)
        venv.create(directory, with_pip=True)
        [theirs] = directory.glob("lib/*/site-packages")
        (theirs / "ours.pth").write_text(ours)
        command = [made, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements]
        installed = subprocess.run(command, capture_output=True, text=True)
        if installed.returncode:
            not_installed(f"tests/strangers/requirements.txt: {installed.stderr[-2000:]}")
        (directory / "complete").touch()
    return made


@pytest.mark.parametrize("package", sorted(path.stem.removeprefix("test_") for path in STRANGERS.glob("test_*.py")))
def test_their_users_find_what_they_rely_on(python, package):
    command = [str(python), "-m", "pytest", "--ds=tests.strangers.settings", "-q", f"tests/strangers/test_{package}.py"]
    # On a database of its own.
    env = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    ran = subprocess.run(die_with_parent(*command), cwd=ROOT, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
