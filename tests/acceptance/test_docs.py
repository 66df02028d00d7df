"""The documentation does what it says: README and tutorial make projects whose jobs run, and tables are the code's."""

from __future__ import annotations

import os
import re
import runpy

import django
import pytest
from django.contrib.auth.models import Permission

from jobs import extensions
from tests.helpers.harness import ROOT
from tests.helpers.project import SIGN_UP, Project

DOCS = ROOT / "docs"
PAGES = [*sorted({*ROOT.glob("*.md")} - {ROOT / "CHANGELOG.md"}), *sorted(DOCS.rglob("*.md"))]


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
    labels = [config.label for config in extensions.app_configs()]
    found = Permission.objects.filter(content_type__app_label__in=labels)
    known = {f"{each.content_type.app_label}.{each.codename}" for each in found}
    named = set(re.findall(r"`(jobs\w*\.\w+)`", text))
    assert named <= known
    # Those that are not Django's own four of a model.
    own = ("add", "change", "delete", "view")
    assert {name for name in known if name.partition(".")[2].split("_")[0] not in own} <= named


def test_the_readme_is_one_screen():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.servers)])
def database(request):
    if request.param == "sqlite":
        return ""
    return request.getfixturevalue("postgres_server").create_database(f"docs{os.getpid()}_{id(request)}")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_the_readme_says_runs_as_it_stands(tmp_path, database):
    project = Project(tmp_path, database)
    project.follow(ROOT / "README.md")
    project.manage("check", "--fail-level", "WARNING")
    assert "Ran 1 test" in project.manage("test")
    project.manage("migrate", "-v0")
    key = project.manage("shell", "-v0", "-c", SIGN_UP).split()[-1]
    said = project.outcome(key)
    assert said.startswith("succeeded")
    assert "Hello ann!" in said


ENQUEUE = """
import types
from django.conf import settings
from django.contrib.auth.models import User
from accounts.views import answer, ask
print(settings.CELERY_BROKER_URL)
print(ask(types.SimpleNamespace(user=User.objects.create_user("ann", "ann@example.com"))).content.decode())
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_the_page_of_django_tasks_says_runs_as_it_stands(tmp_path):
    """In a project that knows no Celery, and without a broker."""
    project = Project(tmp_path)
    project.follow(DOCS / "howto" / "django-tasks.md")
    if django.VERSION < (6,):
        path = tmp_path / "accounts" / "tasks.py"
        path.write_text(path.read_text().replace("from django.tasks", "from django_tasks"))
    project.manage("jobs", "init", "--write")
    project.manage("check", "--fail-level", "WARNING")
    project.manage("migrate", "-v0")
    broker, key = project.manage("shell", "-v0", "-c", ENQUEUE).split()[-2:]
    assert broker == "jobs://"
    said = project.outcome(key)
    assert said.startswith("succeeded")
    assert "amqp://" not in said


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_the_tutorial_says_runs_as_it_stands(tmp_path):
    project = Project(tmp_path)
    project.follow(DOCS / "tutorial.md")
    project.manage("makemigrations", "-v0", "accounts")
    project.manage("migrate", "-v0")
    assert "Ran 6 tests" in project.manage("test")
    call = """
from django.test import Client
print(Client(SERVER_NAME="localhost").post("/signup/", {"email": "ann@example.com"}).json()["job"])
"""
    key = project.manage("shell", "-v0", "-c", call).split()[-1]
    said = project.outcome(key)
    assert said.startswith("succeeded")
    assert "welcome-1@example.com" in said
