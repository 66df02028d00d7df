"""Which apps are installed, in which order, and what may be imported then."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.helpers.harness import ROOT

SETTINGS = """
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", {apps}],
    DATABASES={{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}}},
    SECRET_KEY="x",
    USE_TZ=True,
)
django.setup()
"""
SEEN = """
from jobs.models import Batch, Effect, Event, Job, Limit, Schedule, Statistic
print(sorted({{"batch_id", "order_key"}} & {{field.attname for field in Job._meta.concrete_fields}}))
"""


def imported(line: str, tmp_path) -> subprocess.CompletedProcess[str]:
    app = tmp_path / "early"
    app.mkdir()
    (app / "__init__.py").touch()
    (app / "models.py").write_text(f"{line}\n")
    return run(f"import sys; sys.path.append({str(tmp_path)!r}){SETTINGS}{SEEN}", "early", "jobs", "jobs.events")


def run(script: str, *apps: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script.format(apps=", ".join(map(repr, apps)))]
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


EVENTS, BROKER = "jobs.events", "jobs.contrib.event_broker"
TABLES = """
from django.core.management import call_command
from django.db import connection
call_command("makemigrations", "--check", "--dry-run", verbosity=0)
call_command("migrate", verbosity=0, skip_checks=True)
with connection.cursor() as cursor:
    columns = {{each.name for each in connection.introspection.get_table_description(cursor, "jobs_job")}}
tables = {{"jobs_event", "jobs_event_position"}} & {{*connection.introspection.table_names()}}
print("order_key" in columns, *sorted(tables))
call_command("migrate", "jobs", "zero", verbosity=0, skip_checks=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("apps", "found"),
    [
        (["jobs"], "False"),
        (["jobs", EVENTS], "True jobs_event"),
        ([BROKER, EVENTS, "jobs"], "True jobs_event jobs_event_position"),
    ],
)
def test_each_app_brings_its_own_tables_and_columns(apps, found):
    done = run(SETTINGS + TABLES, *apps)
    assert done.stdout == f"{found}\n", done.stderr


@pytest.mark.parametrize("line", ["from jobs.events import event", "from jobs.events.models import Event"])
def test_an_app_that_is_imported_and_not_installed_names_the_cure(line):
    """Its tables would be those of ``jobs``, and in no migration."""
    done = run(SETTINGS + line, "jobs")
    assert "ImproperlyConfigured: jobs.events is not installed: add 'jobs.events' to INSTALLED_APPS" in done.stderr


def test_so_does_one_without_which_another_cannot_be():
    assert "jobs.events is not installed: add 'jobs.events' to INSTALLED_APPS" in run(SETTINGS, "jobs", BROKER).stderr
