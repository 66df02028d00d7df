"""What type checkers know of tasks: their options, those of extensions too, and what they take and return."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jobs.typed
from jobs import extensions
from jobs.contrib.typos import options
from tests.helpers.harness import ROOT


def test_type_checkers_know_all_options_that_calls_and_tasks_take():
    """And no others: a typo is an error before it is run."""
    known: dict[str, set[str]] = {}
    for part in ast.parse(Path(str(jobs.typed.__file__)).with_suffix(".pyi").read_text()).body:
        if isinstance(part, ast.ClassDef):
            fields = [each.target for each in part.body if isinstance(each, ast.AnnAssign)]
            known[part.name] = {field.id for field in fields if isinstance(field, ast.Name)}
    ours = extensions.merged("options").keys()
    assert known["TaskOptions"] == options.OF_A_TASK | ours | {"base", "throws"}
    positional = {"task_id", "link", "link_error", "shadow", "using"}
    assert known["CallOptions"] >= options.OF_A_CALL - options.PLUMBING - options.OTHERS - positional
    assert known["CallOptions"] - options.OF_A_CALL <= ours


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
