"""What every line of the app keeps to."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from importlib.util import find_spec

import pytest

from jobs.contrib.releases import private_names
from tests.helpers.harness import ROOT

FILES = sorted(ROOT.joinpath("jobs").rglob("*.py"))
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


@cache
def _nodes(file):
    return list(ast.walk(ast.parse(file.read_text())))


@pytest.mark.parametrize("folder", ["simulation", "proof", "benchmarks", "shop", "tests"])
def test_what_is_imported_of_jobs_is_there(folder):
    """Tools and slow tests are not imported by the fast ones."""
    gone = []
    for path in sorted(ROOT.joinpath(folder).rglob("*.py")):
        for node in _nodes(path):
            if isinstance(node, ast.ImportFrom) and re.match(r"jobs\b", node.module or ""):
                names = [f"{node.module}.{each.name}" for each in node.names if not _is_there(node.module, each.name)]
                gone += [f"{path.relative_to(ROOT)}: {name}" for name in names]
    assert gone == []


def _is_there(module, name):
    try:
        return hasattr(import_module(module), name) or find_spec(f"{module}.{name}") is not None
    except ModuleNotFoundError:
        return False


def test_every_line_in_the_code_names_its_action():
    """``logger.info(..., extra={"action": ...})``, or a function that makes the fields."""
    bare = []
    for path in FILES:
        for call in _nodes(path):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                continue
            owner = call.func.value
            if not (isinstance(owner, ast.Name) and owner.id == "logger" and call.func.attr in LEVELS | {"log"}):
                continue
            extra = next((keyword.value for keyword in call.keywords if keyword.arg == "extra"), None)
            if isinstance(extra, ast.Dict):
                keys = {key.value for key in extra.keys if isinstance(key, ast.Constant)}
                # {**fields, ...}: what is merged in has it.
                if "action" in keys or None in extra.keys:
                    continue
            elif extra is not None:
                continue
            bare.append(f"{path.name}:{call.lineno}")
    assert bare == []


@cache
def _named(file):
    """What a module of ours defines, and what it sets on itself."""
    nodes = _nodes(file)
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    stored = [node for node in nodes if isinstance(getattr(node, "ctx", None), ast.Store)]
    return {node.name for node in nodes if isinstance(node, kinds)} | {
        getattr(node, "attr", None) or getattr(node, "id", "") for node in stored
    }


def test_nothing_private_is_used_that_is_not_listed():
    """An attribute that begins with ``_``, of something that is neither ours nor the object itself."""
    listed = {name.replace(":", ".").rpartition(".")[2] for name, _, _ in private_names.entries()}
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
    for file in FILES:
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
        unlisted = [node for node in read if re.match(r"_(?!_|jobs)", node.attr)]
        found |= {f"{file.name}:{node.lineno}": node.attr for node in unlisted}
    assert found == {}


def test_each_path_of_tests_that_a_command_names_is_there():
    """A file that was renamed was looked for in vain where other releases are tried."""
    named = {}
    for page in (*ROOT.glob("*.py"), *ROOT.glob("*.md"), *ROOT.glob(".github/workflows/*.yml"), ROOT / ".ci/run"):
        named |= dict.fromkeys(re.findall(r"\btests/[\w/]+(?:\.\w+)?", page.read_text()), page.name)
    assert "tests/acceptance/test_matrix.py" in named
    assert {path: page for path, page in named.items() if not ROOT.joinpath(path).exists()} == {}
