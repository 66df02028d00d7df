"""The documentation does what it says: its snippets make a project whose job runs, and its tables are the code's."""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from django.contrib.auth.models import Permission

from tests.harness import ROOT
from tests.servers import die_with_parent, wait_for

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
PYTHON = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


def snippets(page: Path) -> list[str]:
    return PYTHON.findall(page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_snippet_compiles(page):
    for source in snippets(page):
        # A part of a dict is one as well.
        source = f"{{{source}}}" if re.match(r'"\w+": ', source) else source
        compile(source, str(page), "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    """On GitHub as well, and from pages that are not in the site."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", text):
        if "://" in target:
            continue
        found = page.parent / target if target else page
        assert found.exists(), target
        if anchor:
            heads = re.findall(r"^#+ (.*)", found.read_text(), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads}


def test_the_tables_are_what_the_code_says():
    stale = runpy.run_path(str(DOCS / "generate.py"))["stale"]()
    assert not [str(page.relative_to(ROOT)) for page in stale], "run python docs/generate.py"


@pytest.mark.django_db
def test_the_permissions_are_those_that_there_are():
    text = (DOCS / "reference" / "permissions.md").read_text()
    known = set(Permission.objects.filter(content_type__app_label="jobs").values_list("codename", flat=True))
    named = set(re.findall(r"`jobs\.(\w+)`", text))
    assert named <= known
    # Those that are not Django's own four of a model.
    assert {name for name in known if name.split("_")[0] not in ("add", "change", "delete", "view")} <= named


def test_the_readme_is_one_screen():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


class Project:
    """A new project with what a page says, and nothing else but its database."""

    def __init__(self, page: Path, directory: Path, database: str) -> None:
        self.directory = directory
        unset = ("DJANGO_", "CELERY_", "JOBS_", "DATABASE_URL", "CACHE_URL")
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(unset)}
        self.env["PYTHONPATH"] = str(ROOT)
        self.run("-m", "django", "startproject", "proj", ".")
        self.manage("startapp", "accounts")
        if database:
            with (directory / "proj" / "settings.py").open("a") as settings:
                settings.write(
                    f"import dj_database_url\nDATABASES = {{'default': dj_database_url.parse({database!r})}}\n"
                )
        for source in snippets(page):
            if named := re.match(r"# (\w+/\w+\.py)(, at the end)?", source):
                with (directory / named[1]).open("a" if named[2] else "w") as file:
                    file.write(source)

    def run(self, *command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], cwd=self.directory, env=self.env, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def manage(self, *command: str) -> str:
        return self.run("manage.py", *command)

    def outcome(self, key: str) -> str:
        """What a real worker makes of the job: its state at the end, and the worker's log."""
        log = self.directory / "log"
        command = die_with_parent(sys.executable, "-m", "celery", "-A", "proj", "worker")
        with log.open("wb") as out:
            worker = subprocess.Popen(
                command, cwd=self.directory, env=self.env, stdout=out, stderr=out, start_new_session=True
            )
        try:
            wait = "from jobs.models import Job; job = Job.objects.get(pk={0!r}); job.wait(timeout=60); "
            wait += "print(Job.objects.get(pk={0!r}).state)"
            state = self.manage("shell", "-v0", "-c", wait.format(key))
            worker.terminate()
            wait_for(lambda: worker.poll() is not None, 40, "the worker has stopped")
        finally:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait()
        return state.strip() + log.read_text(errors="replace")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.servers)])
def database(request):
    if request.param == "sqlite":
        return ""
    return request.getfixturevalue("postgres_server").create_database(f"docs{os.getpid()}_{id(request)}")


@pytest.mark.timeout(300)
def test_what_the_readme_says_runs_as_it_stands(tmp_path, database):
    project = Project(ROOT / "README.md", tmp_path, database)
    project.manage("check", "--fail-level", "WARNING")
    project.manage("migrate", "-v0")
    call = """
from django.test import RequestFactory
from accounts.views import sign_up
print(sign_up(RequestFactory().post("/", {"name": "ann", "email": "ann@example.com"})).content.decode())
"""
    key = project.manage("shell", "-v0", "-c", call).split()[-1]
    said = project.outcome(key)
    assert said.startswith("succeeded")
    assert "Hello ann!" in said


@pytest.mark.timeout(300)
def test_what_the_tutorial_says_runs_as_it_stands(tmp_path):
    project = Project(DOCS / "tutorial.md", tmp_path, "")
    project.manage("makemigrations", "-v0", "accounts")
    project.manage("migrate", "-v0")
    assert "Ran 4 tests" in project.manage("test")
    call = """
from django.test import Client
print(Client(SERVER_NAME="localhost").post("/signup/", {"email": "ann@example.com"}).json()["job"])
"""
    key = project.manage("shell", "-v0", "-c", call).split()[-1]
    said = project.outcome(key)
    assert said.startswith("succeeded")
    assert "welcome-1@example.com" in said
