"""Products of others, from the index and unchanged, each in an environment of its own."""

from __future__ import annotations

import configparser
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import not_installed
from tests.helpers.harness import ROOT

#: Kept from run to run: to install a product takes minutes.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "django-transactional-jobs" / "products"


def _pip(python: Path, *command: str) -> subprocess.CompletedProcess[str]:
    options = ("--quiet", "--disable-pip-version-check")
    return subprocess.run([python, "-m", "pip", *command, *options], capture_output=True, text=True)


def _made(product: str, *others: str, on: str = sys.executable) -> Path:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    # Of this checkout only what it asks for: its code comes by the path, so that it is always the one under test.
    ours = [line for line in setup["options"]["install_requires"].split("\n") if line and not line.startswith("#")]
    wanted = [product, *others, *ours]
    state = hashlib.sha256(f"{wanted} {on} {Path(on).resolve()}".encode()).hexdigest()[:12]
    name = product.partition("==")[0].partition("[")[0]
    directory = CACHE / f"{name.lower()}-{state}"
    python = directory / "bin" / "python"
    CACHE.mkdir(parents=True, exist_ok=True)
    # Race: another process of these tests makes it.
    with directory.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _install(directory, name, wanted, on)
    return python


def _install(directory: Path, name: str, wanted: list[str], on: str) -> None:
    python = directory / "bin" / "python"
    if not (directory / "complete").exists():
        shutil.rmtree(directory, ignore_errors=True)
        subprocess.run([on, "-m", "venv", directory], check=True)
        if (asked := _pip(python, "index", "versions", name)).returncode:
            shutil.rmtree(directory)
            pytest.skip(f"the index has no {name}, or does not answer: {asked.stderr[-300:]}")
        if (installed := _pip(python, "install", *wanted)).returncode:
            not_installed(f"{wanted[0]}: {installed.stderr[-2000:]}")
        (directory / "complete").touch()


@pytest.fixture(scope="session")
def product() -> Callable[..., Path]:
    """``product("pretix==1.0", "other")``: the interpreter of an environment that has them, and what jobs asks for.

    It is one of the Python ``on``, by default of this one.

    Run it with ``PYTHONPATH`` of this checkout. The test is skipped where the index has no such product.
    """
    return _made
