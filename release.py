"""Everything that a release consists of, made and tried: ``python -m release --dry-run``.

``var/release`` gets the source and the wheel, the notes and the site of the documentation; a table says what each is.
Nothing is uploaded: the workflow ``release`` does that, with the files that this made. It needs git and a network for
pip, and builds the site with the environment's mkdocs if there is one.
"""

from __future__ import annotations

import argparse
import configparser
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent
TARGET = ROOT / "var" / "release"
TOOLS = ["build>=1.2,<2", "twine>=6.1,<8", "setuptools>=77,<90"]

#: What the wheel must have, and what it must not.
INSIDE = ("jobs/migrations/0001_initial.py", "jobs/py.typed", "jobs/locale/de/LC_MESSAGES/django.mo", "pytest_jobs.py")
OUTSIDE = ("benchmarks/", "docs/", "shop/", "tests/", "release.py")

TASKS = """
from celery import shared_task
from django.contrib.auth.models import User


@shared_task
def welcome(name):
    return User.objects.create_user(name).username
"""
CALL = """
from accounts.tasks import welcome
from jobs.models import Job

job = Job.objects.get(pk=welcome.delay("ann").id)
job.wait(timeout=60)
job.refresh_from_db()
print(job.state, job.result)
"""


class Failed(Exception):
    """What is wrong with the release, for people."""


#: The environment without this project's.
ENV = {name: value for name, value in os.environ.items() if not re.match("PYTHONPATH|DJANGO_|JOBS_|CELERY_", name)}


def run(*command: str | Path, cwd: Path = ROOT, **env: str) -> str:
    """Run a command; returns what it printed.

    Raises:
        Failed: it ended with an error.
    """
    env = {**ENV, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **env}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def venv(path: Path, *packages: str | Path) -> Path:
    """Make an environment with nothing but these packages; returns its Python."""
    run(sys.executable, "-m", "venv", "--without-pip", path)
    python = path / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", *packages)
    return python


def version() -> str:
    """The version that the metadata and the code say.

    Raises:
        Failed: they say two.
    """
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    said = parser["metadata"]["version"]
    if f'__version__ = "{said}"' not in (ROOT / "jobs" / "__init__.py").read_text():
        raise Failed(f"setup.cfg says {said}, and jobs.__version__ something else")
    return said


def notes(changelog: str, wanted: str, is_dry: bool) -> str:
    """What the changelog says of a version.

    Parameters:
        is_dry: a version without a date is taken as well.

    Raises:
        Failed: it says nothing, or the version has no date.
    """
    found = re.search(rf"^## {re.escape(wanted)} \(([^)\n]+)\)\n(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    if found is None or not found[2].strip():
        raise Failed(f"CHANGELOG.md says nothing of {wanted}: ## {wanted} (2026-12-31)")
    if not is_dry and not re.fullmatch(r"\d{4}-\d\d-\d\d", found[1]):
        raise Failed(f"CHANGELOG.md gives {wanted} no date, but {found[1]!r}")
    return found[2].strip() + "\n"


def build(python: Path, work: Path, target: Path) -> list[Path]:
    """Build the source, and the wheel from it, out of a copy that has nothing but what git knows."""
    copy = work / "source"
    for name in run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"):
        if name and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    make = (python, "-m", "build", "--no-isolation")
    # Links of the README lead into the repository: on another page they would lead nowhere.
    run(*make, "--outdir", target, copy, JOBS_REPOSITORY=os.environ.get("JOBS_REPOSITORY", ""))
    run(python, "-m", "twine", "check", "--strict", *target.iterdir())
    run(*make, "--wheel", "--outdir", work / "renamed", copy, JOBS_IMPORT_NAME="txjobs")
    return sorted(target.iterdir())


def look_into(wheel: Path) -> int:
    """Count the files of a wheel.

    Raises:
        Failed: one is missing, or should not be there.
    """
    names = zipfile.ZipFile(wheel).namelist()
    missing = [name for name in INSIDE if name not in names]
    missing += [] if any(name.startswith("jobs/templates/") for name in names) else ["jobs/templates/"]
    if wrong := missing + [name for name in names if name.startswith(OUTSIDE)]:
        raise Failed(f"{wheel.name}: missing, or too much: {', '.join(wrong)}")
    return len(names)


def smoke(wheel: Path, work: Path) -> str:
    """Have a new project, with nothing but the wheel, run a job by a real worker; returns how it ended."""
    python, project = venv(work / "bare", wheel), work / "project"
    project.mkdir()
    run(python, "-m", "django", "startproject", "proj", ".", cwd=project)
    run(python, "manage.py", "startapp", "accounts", cwd=project)
    (project / "accounts" / "tasks.py").write_text(TASKS)
    with (project / "proj" / "settings.py").open("a") as settings:
        settings.write('\nINSTALLED_APPS += ["jobs", "accounts"]\n')
    run(python, "manage.py", "jobs", "init", "--write", cwd=project)
    run(python, "manage.py", "check", "--fail-level", "WARNING", cwd=project)
    run(python, "manage.py", "migrate", "-v0", cwd=project)
    with (project / "log").open("wb") as log:
        command = [python, "-m", "celery", "-A", "proj", "worker", "--concurrency", "1"]
        worker = subprocess.Popen(command, cwd=project, env=ENV, stdout=log, stderr=log, start_new_session=True)
    try:
        said = run(python, "manage.py", "shell", "-v0", "-c", CALL, cwd=project).strip()
        worker.terminate()
        worker.wait(timeout=40)
    except (Failed, subprocess.TimeoutExpired) as exc:
        raise Failed(f"{exc}\n{(project / 'log').read_text(errors='replace')}") from exc
    finally:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
    if said != "succeeded ann":
        raise Failed(f"the job of the new project: {said}\n{(project / 'log').read_text(errors='replace')}")
    [renamed] = (work / "renamed").glob("*.whl")
    run(python, "-c", f"import sys; sys.path.insert(0, {str(renamed)!r}); import txjobs.conf")
    return said


def site(python: Path, target: Path) -> int:
    """Build the documentation; returns how many pages it has.

    Raises:
        Failed: a page is not as it should be, or a reader's browser would ask another host for something.
    """
    if find_spec("mkdocs") and find_spec("material"):
        python = Path(sys.executable)
    else:
        run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "-r", "docs/requirements.txt")
    run(python, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", target, NO_MKDOCS_2_WARNING="1")
    pages = sorted(target.rglob("*.html"))
    for page in pages:
        if found := re.search(r'<(?:script|link|img)[^>]+(?:src|href)="?(?:https?:)?//[^>]*', page.read_text()):
            raise Failed(f"{page.relative_to(target)} asks another host: {found[0]}")
    return len(pages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--dry-run", action="store_true", help="as it stands, with all changes, and without a date")
    which.add_argument("--tag", help="of this tag (v0.1.0), which has to say the version; the changelog has its date")
    options = parser.parse_args()
    rows: list[tuple[str, str, str]] = []
    began = time.monotonic()

    def step(name: str, work: Callable[[], str]) -> None:
        start = time.monotonic()
        rows.append((name, work(), f"{time.monotonic() - start:.0f} s"))

    try:
        said = version()
        if options.tag not in (None, f"v{said}"):
            raise Failed(f"the tag is {options.tag}, and the version {said}")
        text = notes((ROOT / "CHANGELOG.md").read_text(), said, options.dry_run)
        shutil.rmtree(TARGET, ignore_errors=True)
        dist = TARGET / "dist"
        dist.mkdir(parents=True)
        (TARGET / "notes.md").write_text(text)
        rows.append(("notes.md", f"{len(text.splitlines())} lines of CHANGELOG.md below {said}", ""))
        with tempfile.TemporaryDirectory() as directory:
            work = Path(directory)
            tools = venv(work / "tools", *TOOLS)
            step("dist/", lambda: f"{len(build(tools, work, dist))} files, twine check: passed")
            [wheel] = dist.glob("*.whl")
            for path in sorted(dist.iterdir()):
                digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
                rows.append((f"dist/{path.name}", f"{path.stat().st_size // 1024} KiB, sha256 {digest}...", ""))
            step("the wheel", lambda: f"{look_into(wheel)} files, all that have to be there")
            step("a new project", lambda: f"check, migrate, one job by a worker: {smoke(wheel, work)}")
            step("site/", lambda: f"{site(tools, TARGET / 'site')} pages")
    except Failed as exc:
        sys.exit(f"No release: {exc}")
    width = max(len(name) for name, _, _ in rows)
    for name, what, took in rows:
        sys.stdout.write(f"{name.ljust(width)}  {what}{took and f', {took}'}\n")
    sys.stdout.write(f"{said}: {TARGET.relative_to(ROOT)}, in {time.monotonic() - began:.0f} s\n")


if __name__ == "__main__":
    main()
