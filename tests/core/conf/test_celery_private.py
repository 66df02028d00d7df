"""What is private to Celery and Django and used here: listed, looked for when a worker starts, and no more of it."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from jobs.conf import celery_private
from tests.helpers.harness import ROOT

ENTRIES = list(celery_private.entries())


def test_the_releases_that_workers_take_for_tested_are_those_of_the_combinations():
    """``noxfile.py`` says in which combinations the tests are run."""
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    [made] = [
        node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COMBINATIONS"
    ]
    combinations = ast.literal_eval(made.value).values()
    for name, releases in celery_private.TESTED.items():
        assert {each[name] for each in combinations} == {*releases}, name


def test_all_of_it_is_there():
    assert celery_private.missing() == []


@pytest.mark.parametrize(("name", "parameters"), [(name, parameters) for name, parameters, _ in ENTRIES])
def test_what_is_gone_or_takes_something_else_is_found(monkeypatch, name, parameters):
    monkeypatch.setattr(celery_private, "PRIVATE", f"{name}x {' '.join(parameters or '-')} | x.py: it is gone")
    assert len(celery_private.missing()) == 1
    if parameters:
        takes = f"{' '.join(parameters)} more_than_it_takes"
        monkeypatch.setattr(celery_private, "PRIVATE", f"{name} {takes} | x.py: it changed")
        assert len(celery_private.missing()) == 1 or name.endswith("_create_write_handlers")


def test_what_others_wrap_is_there(monkeypatch):
    """As Sentry wraps ``build_tracer``."""
    from celery.app.trace import TraceInfo

    monkeypatch.setattr(TraceInfo, "handle_ignore", lambda *args, **kwargs: None)
    assert celery_private.missing() == []


@pytest.mark.parametrize(("name", "purpose"), [(name, purpose) for name, _, purpose in ENTRIES])
def test_each_is_used_where_the_list_says(name, purpose):
    [file] = ROOT.joinpath("jobs").rglob(purpose.partition(":")[0])
    last = name.replace(":", ".").rpartition(".")[2]
    assert last in file.read_text()


@cache
def _nodes(file):
    return list(ast.walk(ast.parse(file.read_text())))


@cache
def _named(file):
    """What a module of ours defines, and what it sets on itself."""
    nodes = _nodes(file)
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    stored = [node for node in nodes if isinstance(getattr(node, "ctx", None), ast.Store)]
    return {node.name for node in nodes if isinstance(node, kinds)} | {
        getattr(node, "attr", None) or getattr(node, "id", "") for node in stored
    }


def test_nothing_else_is_used():
    """An attribute that begins with ``_``, of something that is neither ours nor the object itself."""
    listed = {name.replace(":", ".").rpartition(".")[2] for name, _, _ in ENTRIES}
    # Django documents the first three; the others are Python's.
    listed |= {
        "_meta",
        "_state",
        "_default_manager",
        "_base_manager",
        "_exit",
        "_asdict",
        "_make",
        "_replace",
        "_fields",
        "_getframe",
    }
    listed |= {"_current_frames", "_get_running_loop"}
    # Sentry's own, in place of what it does around Celery's tracer: what fails there changes nothing.
    listed |= {"_capture_exception", "_make_event_processor"}
    found = {}
    for file in ROOT.joinpath("jobs").rglob("*.py"):
        nodes, ours = _nodes(file), _named(file)
        read = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr not in listed | ours]
        # What it inherits from a class of ours is its own.
        near = [
            node.module
            for node in nodes
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jobs.")
        ]
        files = [ROOT.joinpath(*name.split(".")).with_suffix(".py") for name in near]
        inherited = {name for each in files if each.exists() for name in _named(each)}
        read = [node for node in read if getattr(node.value, "id", "") != "self" or node.attr not in inherited]
        private_names = [node for node in read if re.match(r"_(?!_|jobs)", node.attr)]
        found |= {f"{file.name}:{node.lineno}": node.attr for node in private_names}
    assert found == {}
