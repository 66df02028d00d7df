"""The core tests again, on every other database and broker, each cell in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.conftest import server
from tests.harness import ROOT
from tests.servers import Postgres, RabbitMQ, Redis, die_with_parent

#: A cell is one long test.
pytestmark = [pytest.mark.servers, pytest.mark.timeout(900)]

#: (database, broker); None is what needs no server. The first cell is this process itself.
CELLS = {
    "sqlite-redis": (None, Redis),
    "sqlite-rabbitmq": (None, RabbitMQ),
    "postgres-jobs": (Postgres, None),
    "postgres-redis": (Postgres, Redis),
    "postgres-rabbitmq": (Postgres, RabbitMQ),
}


def run_cell(name: str, env: dict[str, str]) -> tuple[int, str]:
    marks = "core or wide" if os.environ.get("JOBS_TEST_MATRIX") == "wide" else "core"
    if name == "postgres-jobs":
        # What no broker has to do with, once on the other database.
        marks += " or database"
    command = [sys.executable, "-m", "pytest", "-n0", "-m", marks, "-q", "-p", "no:randomly", "--tb=short", "-x"]
    log = Path(tempfile.mkdtemp(prefix=f"jobs-cell-{name}-")) / "log"
    with log.open("wb") as out:
        code = subprocess.run(
            die_with_parent(*command), cwd=ROOT, env=env, stdout=out, stderr=out, timeout=800
        ).returncode
    return code, log.read_text(errors="replace")


def marks_of(cell: str) -> list[pytest.MarkDecorator]:
    """One cell is for everybody, that with all that only a database decides; the others run in CI."""
    return [pytest.mark.xdist_group(cell), *([] if cell == "postgres-jobs" else [pytest.mark.slow])]


@pytest.mark.parametrize("cell", [pytest.param(cell, marks=marks_of(cell)) for cell in CELLS])
def test_core_on(cell):
    if "DATABASE_URL" in os.environ or "CELERY_BROKER_URL" in os.environ:
        pytest.skip("this is a cell itself")
    database, broker = CELLS[cell]
    # A queue of its own: other tests of this process may have used the broker.
    env = {**os.environ, "CELERY_TASK_DEFAULT_QUEUE": f"celery-{cell}"}
    if database is not None:
        env["DATABASE_URL"] = server(database).create_database(cell)  # type: ignore[attr-defined]
    if broker is not None:
        env["CELERY_BROKER_URL"] = server(broker).url
    code, output = run_cell(cell, env)
    assert code == 0, output[-8000:]
    assert " passed" in output
