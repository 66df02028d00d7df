"""What is private to Celery and Django and used here: listed, looked for when a worker starts, and no more of it."""

from __future__ import annotations

import ast

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
