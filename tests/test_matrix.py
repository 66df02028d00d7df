"""The core tests again, on every other database and broker, each cell in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import server
from tests.harness import ROOT
from tests.servers import Postgres, RabbitMQ, Redis, die_with_parent

pytestmark = pytest.mark.servers

#: (database, broker); None is what needs no server. The first cell is this process itself.
CELLS = {
    "sqlite-redis": (None, Redis),
    "sqlite-rabbitmq": (None, RabbitMQ),
    "postgres-jobs": (Postgres, None),
    "postgres-redis": (Postgres, Redis),
    "postgres-rabbitmq": (Postgres, RabbitMQ),
}

_running: dict[str, Future] = {}
_missing: dict[str, str] = {}


def start_all() -> None:
    """Two cells at a time, beside this process: their workers wait more than they work."""
    if "DATABASE_URL" in os.environ or "CELERY_BROKER_URL" in os.environ:
        return
    pool = ThreadPoolExecutor(2)
    for number, (name, (database, broker)) in enumerate(CELLS.items()):
        env = {key: value for key, value in os.environ.items() if key not in ("DATABASE_URL", "CELERY_BROKER_URL")}
        try:
            if database is not None:
                env["DATABASE_URL"] = server(database, "matrix").create_database(name)  # type: ignore[attr-defined]
            if broker is not None:
                env["CELERY_BROKER_URL"] = server(broker, "matrix").url
        except pytest.skip.Exception as missing:
            _missing[name] = str(missing)
            continue
        # Cells on one broker keep to queues of their own.
        env["CELERY_TASK_DEFAULT_QUEUE"] = f"celery{number}"
        _running[name] = pool.submit(run_cell, name, env)


def run_cell(name: str, env: dict[str, str]) -> tuple[int, str]:
    marks = "core or wide" if os.environ.get("JOBS_TEST_MATRIX") == "wide" else "core"
    if name == "postgres-jobs":
        # What no broker has to do with, once on the other database.
        marks += " or database"
    command = [sys.executable, "-m", "pytest", "-m", marks, "-q", "-p", "no:randomly", "--tb=short", "-x"]
    log = Path(tempfile.mkdtemp(prefix=f"jobs-cell-{name}-")) / "log"
    with log.open("wb") as out:
        code = subprocess.run(
            die_with_parent(*command), cwd=ROOT, env=env, stdout=out, stderr=out, timeout=800
        ).returncode
    return code, log.read_text(errors="replace")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cell", CELLS)
def test_core_on(cell):
    if "DATABASE_URL" in os.environ or "CELERY_BROKER_URL" in os.environ:
        pytest.skip("this is a cell itself")
    if cell in _missing:
        pytest.skip(_missing[cell])
    code, output = _running[cell].result()
    assert code == 0, output[-8000:]
    assert " passed" in output
