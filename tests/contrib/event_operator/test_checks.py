"""What the checks say of events."""

from __future__ import annotations

import sys
from types import SimpleNamespace

from django.apps import apps

from jobs.contrib.checks import system as checks
from tests.helpers.checked import app, ids


def test_handlers_that_no_worker_imports(tmp_path, monkeypatch, only_their_own_tasks):
    """Celery's autodiscovery finds only tasks.py."""
    config = SimpleNamespace(name="lone", path=str(tmp_path))
    monkeypatch.setattr(apps, "get_app_configs", lambda: [config])
    (tmp_path / "handlers.py").write_text("import logging\n")
    assert ids(checks.check_tasks(app())) == []
    (tmp_path / "handlers.py").write_text("from jobs.events import handler\n")
    [message] = checks.check_tasks(app())
    assert (message.id, "lone.handlers" in message.msg) == ("jobs.W025", True)
    (tmp_path / "celery.py").touch()
    assert ids(checks.check_tasks(app())) == [], "it is another service"
    (tmp_path / "celery.py").unlink()
    monkeypatch.setitem(sys.modules, "lone.handlers", SimpleNamespace())
    assert ids(checks.check_tasks(app())) == []
