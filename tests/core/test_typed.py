"""``@jobs.task``: the decorator, and what type checkers know of the tasks that it makes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from jobs import Task, task
from jobs.models import Job
from jobs.typed import ResultOf, TaskOf
from tests.helpers.harness import ROOT, deliver, effects
from tests.models import Effect


@task
def plain(key: str) -> str:
    Effect.objects.create(key=key)
    return key


@task(bind=True, unique="typed:{key}")
def bound(self: Task, key: str) -> bool:
    return self.job is not None


def test_the_types_can_be_imported_for_annotations():
    assert TaskOf[[int], str]
    assert ResultOf[str]


@pytest.mark.django_db(transaction=True)
def test_a_decorated_function_is_a_transactional_task(node):
    assert isinstance(plain, Task)
    assert deliver(plain.delay("a")) == ("SUCCESS", "a")
    assert effects() == {"a": 1}
    assert bound.delay("b").id == bound.delay("b").id, "it has the options that were given"
    assert deliver(Job(id=bound.delay("b").id)) == ("SUCCESS", True)


ORDERS = [
    "import jobs.task; jobs.task.Task",
    "from jobs.task import Task",
    "from jobs import task\n@task\ndef zero(): pass",
    "from jobs import Task",
    "import jobs\n@jobs.task()\ndef zero(): pass",
    "from celery import Celery; Celery('proj', task_cls='jobs.task:Task', set_as_current=False).Task",
]

AFTERWARDS = """
from django.conf import settings
settings.INSTALLED_APPS.insert(0, "early_app")
import django; django.setup()
from celery import Celery
from jobs import task
from jobs.task import Task
import jobs.task
assert issubclass(Celery("proj", task_cls="jobs.task:Task").Task, Task)
@task
def one(): pass
@jobs.task(atomic=False)
def two(): pass
assert isinstance(one, Task) and one.atomic and not two.atomic
assert jobs.Task is jobs.task.Task is Task
"""


@pytest.mark.slow
@pytest.mark.parametrize("first", ORDERS)
def test_it_is_the_module_and_the_decorator_in_every_order_of_imports(first, tmp_path):
    app = tmp_path / "early_app"
    app.mkdir()
    (app / "__init__.py").touch()
    # Before those of our own app.
    (app / "models.py").write_text(f"import sys; assert 'jobs.task' not in sys.modules\n{first}\n")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    command = [sys.executable, "-c", AFTERWARDS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
