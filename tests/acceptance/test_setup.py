"""The first day: what ``jobs init`` writes is enough, and a project that has a package ``jobs`` of its own."""

from __future__ import annotations

import json
import runpy
import shutil

import pytest

from tests.helpers.harness import ROOT
from tests.helpers.project import SIGN_UP, Project

pytestmark = pytest.mark.timeout(300)


def files(project: Project) -> dict[str, str]:
    found = project.directory.rglob("*.py")
    return {str(path.relative_to(project.directory)): path.read_text() for path in found}


def begin(project: Project, settings: str = "") -> None:
    """The README's app, in a project that knows no Celery; and what a person writes."""
    project.follow(ROOT / "README.md")
    for name in ("celery.py", "__init__.py"):
        (project.directory / "proj" / name).unlink()
    path = project.directory / "proj" / "settings.py"
    path.write_text(path.read_text().partition("# proj/settings.py")[0])
    (project.directory / "proj" / "__init__.py").touch()
    add(project, 'INSTALLED_APPS += ["jobs", "accounts"]\n' + settings)


def add(project: Project, text: str) -> None:
    with (project.directory / "proj" / "settings.py").open("a") as file:
        file.write(text)


@pytest.mark.slow
def test_init_is_enough_for_the_first_job(tmp_path):
    project = Project(tmp_path)
    begin(project, 'EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"\n')
    before = files(project)
    shown = project.manage("jobs", "init")
    assert files(project) == before, "it only shows"
    assert "+++ proj/celery.py" in shown
    assert '+app = Celery("proj", task_cls="jobs.task:Task")' in shown
    assert "jobs init --write" in shown

    said = json.loads(project.manage("jobs", "init", "--write", "--json"))
    assert (said["written"], len(said["files"]), said["notes"]) == (True, 3, [])
    after = files(project)
    for name, text in before.items():
        assert after[name].startswith(text.rstrip("\n")), "it only adds"
    assert "Nothing to add." in project.manage("jobs", "init", "--write")
    assert files(project) == after
    project.manage("check", "--fail-level", "WARNING")
    project.manage("migrate", "-v0")
    key = project.manage("shell", "-v0", "-c", SIGN_UP).split()[-1]
    said = project.outcome(key)
    assert said.startswith("succeeded")
    assert "Hello ann!" in said


APP = """import os

import celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "proj.settings")
app = celery.Celery(
    "äpp",
    include=["accounts.tasks"],  # kept
)
app.config_from_object("django.conf:settings", namespace="CELERY")
"""
SETTINGS = """
CELERY_TASK_TIME_LIMIT = 60
CELERY_BROKER_URL = "redis://localhost/7"  # ours
CELERY_TASK_SOFT_TIME_LIMIT = 30
"""
SEEN = """
from django.conf import settings
from celery import current_app
print([type(current_app.tasks["accounts.tasks.send_welcome_mail"]).__mro__[1].__module__, current_app.main,
settings.CELERY_BROKER_URL, settings.CELERY_TASK_TIME_LIMIT, settings.CELERY_TASK_SOFT_TIME_LIMIT,
settings.CELERY_RESULT_BACKEND])
"""


@pytest.mark.slow
def test_init_adds_to_the_celery_app_that_there_is(tmp_path):
    project = Project(tmp_path)
    begin(project, SETTINGS)
    (tmp_path / "proj" / "background.py").write_text(APP)
    (tmp_path / "proj" / "__init__.py").write_text("from .background import app\n")
    shown = project.manage("jobs", "init")
    assert '+    include=["accounts.tasks"], task_cls="jobs.task:Task",  # kept' in shown
    assert "manage.py jobs audit" in shown
    project.manage("jobs", "init", "--write")
    assert not (tmp_path / "proj" / "celery.py").exists()
    assert (tmp_path / "proj" / "__init__.py").read_text() == "from .background import app\n"
    load = "from celery import current_app; current_app.loader.import_default_modules()"
    seen = project.manage("shell", "-v0", "-c", load + SEEN)
    assert "['jobs.task', 'äpp', 'redis://localhost/7', 60, 30, 'jobs.backend:Backend']" in seen
    assert "Nothing to add." in project.manage("jobs", "init")


SPLIT = """
from django.conf import settings
from django.core.management import call_command
call_command("check", fail_level="WARNING")
print([settings.SETTINGS_MODULE, settings.CELERY_BROKER_URL, settings.CELERY_RESULT_BACKEND,
sorted(settings.CELERY_BROKER_TRANSPORT_OPTIONS), settings.DATABASES["default"]["OPTIONS"]["timeout"]])
"""


@pytest.mark.slow
@pytest.mark.parametrize("broker_in", ["base", "dev, prod"])
def test_init_with_split_settings_reaches_all_that_inherit(tmp_path, broker_in):
    project = Project(tmp_path)
    begin(project)
    (tmp_path / "proj" / "settings").mkdir()
    base = (tmp_path / "proj" / "settings.py").rename(tmp_path / "proj" / "settings" / "base.py")
    for name in ("dev", "prod"):
        (base.parent / f"{name}.py").write_text("from proj.settings.base import *\nCELERY_TASK_TIME_LIMIT = 7\n")
    (base.parent / "__init__.py").touch()
    for name, url in (("base", "redis://here/1"), ("dev", "redis://here/1"), ("prod", "amqp://there//")):
        if name in broker_in:
            with (base.parent / f"{name}.py").open("a") as file:
                file.write(f'CELERY_BROKER_URL = "{url}"\n')
    manage = tmp_path / "manage.py"
    manage.write_text(manage.read_text().replace("proj.settings", "proj.settings.dev"))

    shown = project.manage("jobs", "init", "--write")
    assert "DJANGO_SETTINGS_MODULE" in shown
    assert "(proj.settings.prod)" in shown
    written = {path.stem for path in base.parent.glob("*.py") if "(CELERY_BROKER_URL, " in path.read_text()}
    assert written == set(broker_in.split(", "))
    assert "Nothing to add." in project.manage("jobs", "init", "--write")
    for name in ("dev", "prod"):
        seen = project.manage("shell", "-v0", "--settings", f"proj.settings.{name}", "-c", SPLIT)
        is_rabbit = name == "prod" and broker_in != "base"
        url, options = ("amqp://there//", "confirm_publish") if is_rabbit else ("redis://here/1", "socket_keepalive")
        assert f"['proj.settings.{name}', '{url}', 'jobs.backend:Backend'" in seen
        assert options in seen
        assert seen.rstrip().endswith("20]")


OWN = """
from django.contrib import admin
from django.db import models


class Job(models.Model):
    title = models.CharField(max_length=100)


admin.site.register(Job)
"""
PAGES = """
from django.contrib.auth.models import User
from django.test import Client
from django.test.utils import setup_test_environment
from django.urls import reverse
from txjobs.models import Job
import jobs.models
setup_test_environment()
client = Client()
client.force_login(User.objects.create_superuser("root"))
for model, key in ((Job, Job.objects.get().pk), (jobs.models.Job, jobs.models.Job.objects.create(title="cook").pk)):
    for name, args in (("changelist", []), ("change", [key])):
        url = reverse(f"admin:{model._meta.app_label}_job_{name}", args=args)
        response = client.get(url)
        # Parts of extensions are rendered before the page.
        names = [each.name for each in response.templates if "/change_" in (each.name or "")]
        print([url, response.status_code, names[0]])
"""


@pytest.mark.slow
def test_beside_a_package_jobs_of_the_project_under_another_name(tmp_path):
    """The same code, built with ``JOBS_IMPORT_NAME``; both have a model ``Job``, and a table and pages for it."""
    library, directory = tmp_path / "library", tmp_path / "project"
    shutil.copytree(ROOT / "jobs", library / "jobs", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pytest_jobs.py", library)
    pytest.importorskip("setuptools")
    rename = runpy.run_path(str(ROOT / "setup.py"))["rename"]
    with pytest.raises(ValueError, match="at most 13"):
        rename(library, "transactional_jobs")
    rename(library, "txjobs")

    directory.mkdir()
    project = Project(directory, library=library)
    project.follow(ROOT / "README.md", package="txjobs")
    project.manage("startapp", "jobs")
    add(project, '\nINSTALLED_APPS += ["jobs"]\n')
    (directory / "jobs" / "models.py").write_text(OWN)
    project.manage("makemigrations", "-v0", "jobs")
    project.manage("makemigrations", "--check", "--dry-run")
    project.manage("check", "--fail-level", "WARNING")
    project.manage("migrate", "-v0")
    key = project.manage("shell", "-v0", "-c", SIGN_UP).split()[-1]
    assert project.outcome(key, package="txjobs").startswith("succeeded")
    pages = project.manage("shell", "-v0", "-c", PAGES)
    assert f"['/admin/txjobs/job/{key}/change/', 200, 'txjobs/admin/job/change_form.html']" in pages
    assert "['/admin/jobs/job/1/change/', 200, 'admin/change_form.html']" in pages
