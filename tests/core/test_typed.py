"""``@jobs.task``: the decorator, and what type checkers know of the tasks that it makes."""

from __future__ import annotations

import json
import os
import re
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


CHECKED = """
from typing import Any
from jobs import Task, task
from jobs.typed import TaskOf

@task
def add(a: int, b: int = 1) -> str:
    return ""
@task(bind=True, unique="charge:{order}")
def charge(self: Task, order: int) -> bool:
    return True

@task(bind=True)
async def ask(self: Task, order: int) -> bytes:
    return b""
@task
async def look(order: int) -> bytes:
    return b""

same: TaskOf[[int], bool] = charge
reveal_type(add.delay(1))  # jobs.typed.ResultOf[str]
reveal_type(add.delay(1, b=2).get(timeout=3))  # str
reveal_type(add(1))  # str
reveal_type(charge.delay)  # def (order: int) -> jobs.typed.ResultOf[bool]
reveal_type(charge.apply_async((1,), queue="mail", countdown=3).existing)  # bool
reveal_type(ask.delay(1))  # jobs.typed.ResultOf[bytes]
reveal_type(look.delay(1).get())  # bytes
add.delay("1")  # error: Argument 1 to "delay" of "TaskOf" has incompatible type "str"
charge.delay()  # error: Missing positional argument "order" in call to "delay" of "TaskOf"
charge.apply_async((1,), countdown="soon")  # error: Argument "countdown" to "apply_async" of "TaskOf" has
charge.apply_async((1,), countdwn=3)  # error: Unexpected keyword argument "countdwn" for "apply_async" of "TaskOf"
charge.delay_many([(1,)], priorty=3)  # error: Unexpected keyword argument "priorty" for "delay_many" of "TaskOf"
task(unique_until="never")  # error: No overload variant of "task" matches
task(uniqe="charge:{order}")  # error: Unexpected keyword argument "uniqe" for overloaded function "task"
OTHER: dict[str, Any] = {"once": {"keys": ["order"]}}
given = task(name="x", queue="mail", autoretry_for=(OSError,), retry_backoff=True, max_retries=3, **OTHER)
charge.apply_async(None, {"order": 1}, queue="mail", eta=None, headers={"a": 1}, tags={"user": 5}, link=[])
"""


def expected() -> dict[int, str]:
    """What mypy says of each line of ``CHECKED`` that it says something of."""
    lines = enumerate(CHECKED.splitlines(), 1)
    return {number: line.rpartition("  # ")[2] for number, line in lines if "  # " in line}


@pytest.mark.slow
def test_mypy_knows_what_a_task_takes_and_returns(tmp_path):
    path = tmp_path / "checked.py"
    path.write_text(CHECKED)
    # With what `mypy jobs` has left in its cache, or leaves there.
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "setup.cfg")]
    done = subprocess.run([*command, str(path)], cwd=ROOT, capture_output=True, text=True)
    said = {int(number): text for number, text in reversed(re.findall(r"checked\.py:(\d+): (.*)", done.stdout))}
    assert said.keys() == expected().keys(), done.stdout
    for number, text in expected().items():
        assert text in said[number], done.stdout


def test_pyright_knows_the_same(tmp_path):
    pytest.importorskip("basedpyright")
    (tmp_path / "checked.py").write_text(CHECKED)
    settings = {"include": ["checked.py"], "extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run([*command, "-p", str(tmp_path)], capture_output=True, text=True)
    found = json.loads(done.stdout)["generalDiagnostics"]
    said = {each["range"]["start"]["line"] + 1: f"{each['severity']}: {each['message']}" for each in found}
    assert said.keys() == expected().keys(), done.stdout
    for number, text in expected().items():
        # Its errors have words of their own, and its types no modules.
        text = "error: " if text.startswith("error: ") else re.sub(r"^def |jobs\.typed\.", "", text)
        assert said[number].startswith(text) or said[number].endswith(f'is "{text}"'), done.stdout
