"""The stub that type checkers read has the options of the core, and those of all extensions."""

from __future__ import annotations

import ast
from pathlib import Path

import jobs.typed
from jobs import extensions
from jobs.calling import options


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
