"""A Celery app in an installed package, to which nobody can write ``task_cls``, becomes ours by the settings."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from celery import Celery, Task, shared_task

import jobs
from jobs.contrib.packaged import checks
from tests.helpers.checked import ids
from tests.helpers.harness import deliver, effects
from tests.helpers.project import Project
from tests.models import Effect

calls: list[str] = []


def package(settings, name: str = "shopkit", task_cls=None, apps=("shopkit",)) -> Celery:
    settings.JOBS = {**settings.JOBS, "APPS": [*apps]}
    return Celery(name, set_as_current=False, **({} if task_cls is None else {"task_cls": task_cls}))


def test_all_tasks_of_a_named_app_are_ours(settings):
    app = package(settings)

    class ProfiledTask(app.Task):  # type: ignore[name-defined]
        def __call__(self, *args, **kwargs):
            calls.append("profiled")
            return super().__call__(*args, **kwargs)

    @app.task(base=ProfiledTask)
    def with_base(): ...

    @app.task
    def plain(): ...

    for task in (with_base, plain):
        assert isinstance(task._get_current_object(), jobs.Task)
    assert with_base.own_call is not None
    assert list(checks.named(app)) == []


def test_another_app_stays_as_it_is(settings):
    app = package(settings, "other")
    assert not issubclass(app.Task, jobs.Task)
    assert ids([*checks.named(app)]) == ["jobs.W026"]


def test_what_the_class_of_the_package_does_comes_first(settings):
    class Own(Task):
        abstract = True
        tenant = "a"

        def apply_async(self, *args, **kwargs):
            calls.append("own")
            return super().apply_async(*args, **kwargs)

    app = package(settings, task_cls=Own)
    assert issubclass(app.Task, Own)
    assert issubclass(app.Task, jobs.Task)
    assert app.Task.__mro__.index(Own) < app.Task.__mro__.index(jobs.Task)


def test_an_app_whose_class_was_made_before_is_an_error(settings):
    app = package(settings, apps=())
    assert not issubclass(app.Task, jobs.Task)
    settings.JOBS = {**settings.JOBS, "APPS": ["shopkit"]}
    assert ids([*checks.named(app)]) == ["jobs.E022"]


def test_settings_that_are_being_loaded_are_not_asked(tmp_path):
    """A settings module that makes tasks would be read a second time, half made."""
    (tmp_path / "half.py").write_text(
        "import jobs\nfrom celery import Celery\nMADE = Celery('x', set_as_current=False).Task\nJOBS = {'APPS': 'x'}\n"
    )
    script = f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; from django.conf import settings; print(settings.MADE)"
    env = {"DJANGO_SETTINGS_MODULE": "half", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


APP = """
import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "proj.settings")
app = Celery("shopkit")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
"""
TASKS = """
from django.contrib.auth.models import User
from django.db import transaction

from shopkit.celery_app import app


class ProfiledTask(app.Task):
    def __call__(self, *args, **kwargs):
        User.objects.create(username="profiled")
        return super().__call__(*args, **kwargs)


@app.task(base=ProfiledTask)
def welcome(name):
    User.objects.create(username=name)


def sign_up():
    with transaction.atomic():
        return welcome.delay("ann").id
"""


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_worker_runs_the_jobs_of_an_installed_package(tmp_path):
    """Nothing of the package is changed; ``jobs`` stands last among the apps, and the settings have two lines."""
    project = Project(tmp_path)
    kit = tmp_path / "site" / "shopkit"
    kit.mkdir(parents=True)
    project.env["PYTHONPATH"] += f":{kit.parent}"
    for name, text in (
        ("__init__", "from shopkit.celery_app import app as celery_app\n"),
        ("celery_app", APP),
        ("tasks", TASKS),
        # As packages do: their models' module imports tasks.
        ("models", "from shopkit import tasks\n"),
    ):
        (kit / f"{name}.py").write_text(text)
    (tmp_path / "proj" / "__init__.py").write_text("from shopkit.celery_app import app\n")
    with (tmp_path / "proj" / "settings.py").open("a") as file:
        file.write(
            "from jobs.conf import celery_settings\n"
            "INSTALLED_APPS += ['shopkit', 'jobs']\n"
            "DATABASES['default']['OPTIONS'] = {'transaction_mode': 'IMMEDIATE', 'timeout': 20}\n"
            "globals().update(celery_settings('jobs://', prefix='CELERY_'))\n"
            "JOBS = {'APPS': ['shopkit']}\n"
        )
    project.manage("migrate", "-v0")
    key = project.manage("shell", "-v0", "-c", "from shopkit.tasks import sign_up; print(sign_up())").split()[-1]
    assert "succeeded" in project.outcome(key)
    ask = "from django.contrib.auth.models import User; print(sorted(User.objects.values_list('username', flat=True)))"
    assert json.loads(project.manage("shell", "-v0", "-c", ask).replace("'", '"')) == ["ann", "profiled"]


class ProfiledTask(Task):
    """A package's."""

    def __call__(self, *args, **kwargs):
        calls.append("profiled")
        return super().__call__(*args, **kwargs)


class ProfiledJob(ProfiledTask, jobs.Task):
    pass


@shared_task(base=ProfiledJob)
def both(key):
    Effect.objects.create(key=key)


@pytest.mark.django_db(transaction=True)
def test_a_base_class_of_both_does_the_same_for_one_task(node):
    calls.clear()
    assert deliver(both.delay("a"))[0] == "SUCCESS"
    assert (calls, effects()) == (["profiled"], {"a": 1})
