"""The source distribution of a package, which has its tests."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.helpers.servers import Missing


def unpack(folder: Path, name: str, version: str, *wanted: str) -> Path:
    """Unpack what begins with one of these paths; returns the top of it.

    Raises:
        Missing: as :func:`sdist`.
    """
    top = f"{name}-{version}/"
    with tarfile.open(sdist(name, version)) as archive:
        found = [each for each in archive if each.name.startswith(tuple(top + path for path in wanted))]
        archive.extractall(folder, found, filter="data")
    return folder / top


def sdist(name: str, version: str) -> Path:
    """The archive, downloaded once.

    Raises:
        Missing: there is no network, and it was not downloaded before.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "django-transactional-jobs"
    if not (path := cache / f"{name}-{version}.tar.gz").exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        # It is only read: a Python that it does not support will do.
        command += ["--ignore-requires-python", "--no-binary", name, "-d", str(cache), f"{name}=={version}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if not path.exists():
            raise Missing(f"the source distribution of {name} {version}: {done.stderr[-500:]}")
    return path
