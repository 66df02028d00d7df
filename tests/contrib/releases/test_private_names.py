"""What is private to Celery and Django and used here: listed, looked for when a worker starts, and no more of it."""

from __future__ import annotations

import pytest

from jobs.contrib.releases import private_names
from tests.helpers.harness import ROOT

ENTRIES = list(private_names.entries())


def test_all_of_it_is_there():
    assert private_names.missing() == []


@pytest.mark.parametrize(("name", "parameters"), [(name, parameters) for name, parameters, _ in ENTRIES])
def test_what_is_gone_or_takes_something_else_is_found(monkeypatch, name, parameters):
    monkeypatch.setattr(private_names, "PRIVATE", f"{name}x {' '.join(parameters or '-')} | x.py: it is gone")
    assert len(private_names.missing()) == 1
    if parameters:
        takes = f"{' '.join(parameters)} more_than_it_takes"
        monkeypatch.setattr(private_names, "PRIVATE", f"{name} {takes} | x.py: it changed")
        assert len(private_names.missing()) == 1 or name.endswith("_create_write_handlers")


def test_what_others_wrap_is_there(monkeypatch):
    """As Sentry wraps ``build_tracer``."""
    from celery.app.trace import TraceInfo

    monkeypatch.setattr(TraceInfo, "handle_ignore", lambda *args, **kwargs: None)
    assert private_names.missing() == []


@pytest.mark.parametrize(("name", "purpose"), [(name, purpose) for name, _, purpose in ENTRIES])
def test_each_is_used_where_the_list_says(name, purpose):
    [file] = ROOT.joinpath("jobs").rglob(purpose.partition(":")[0])
    last = name.replace(":", ".").rpartition(".")[2]
    assert last in file.read_text()
