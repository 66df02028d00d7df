"""An app that stands before ``jobs`` in ``INSTALLED_APPS``, and imports of it in its models."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.helpers.harness import ROOT

SCRIPT = """
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "early", "jobs"],
    DATABASES={{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}}},
    SECRET_KEY="x",
    USE_TZ=True,
)
django.setup()
from jobs.models import Batch, Effect, Event, Job, Limit, Schedule, Tally
print(sorted({{"batch_id", "order_key"}} & {{field.attname for field in Job._meta.concrete_fields}}))
"""


def imported(line: str, tmp_path) -> subprocess.CompletedProcess[str]:
    app = tmp_path / "early"
    app.mkdir()
    (app / "__init__.py").touch()
    (app / "models.py").write_text(f"{line}\n")
    command = [sys.executable, "-c", f"import sys; sys.path.append({str(tmp_path)!r}){SCRIPT.format()}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "line",
    [
        "from jobs import Task, batch",
        "from jobs import effect, once",
        "from jobs.events import event, handler",
        "from jobs.testing import assert_fits, assert_idempotent",
    ],
)
def test_public_names_may_be_imported_before_the_tables(line, tmp_path):
    done = imported(line, tmp_path)
    assert done.stdout == "['batch_id', 'order_key']\n", done.stderr


def test_tables_of_an_extension_that_are_imported_too_early_name_the_cure(tmp_path):
    """Else a job's row would lack their columns."""
    done = imported("from jobs.events.models import Event", tmp_path)
    assert "was imported before jobs.models, which reads it: import from jobs.models" in done.stderr
