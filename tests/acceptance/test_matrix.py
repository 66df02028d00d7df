"""The core tests again, on every other database and broker, each cell in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pytest

from tests.conftest import server
from tests.helpers.harness import ROOT
from tests.helpers.servers import MariaDB, Postgres, RabbitMQ, Redis, die_with_parent

#: A cell is one long test.
pytestmark = [pytest.mark.servers, pytest.mark.timeout(2800)]

#: Database, broker; None is what needs no server. The first cell is this process itself.
CELLS = {
    "sqlite-redis": (None, Redis),
    "postgres-jobs": (Postgres, None),
    "postgres-rabbitmq": (Postgres, RabbitMQ),
}
#: With tests of its own, those that start few workers.
MARIADB = {"mariadb-jobs": (MariaDB, None)}
#: The other pairs. No job is a message, so what a broker does to it does not depend on the database: where time is
#: short, it is enough that each database and each broker is met.
PAIRS = {"sqlite-rabbitmq": (None, RabbitMQ), "postgres-redis": (Postgres, Redis)}

IS_WIDE = os.environ.get("JOBS_TEST_MATRIX") == "wide"


def run_cell(name: str, marks: str, *paths: str, **more: str) -> None:
    if "DATABASE_URL" in os.environ or "CELERY_BROKER_URL" in os.environ:
        pytest.skip("this is a cell itself")
    database, broker = (CELLS | PAIRS | MARIADB)[name]
    # A queue of its own: other tests of this process may have used the broker.
    env = {**os.environ, "CELERY_TASK_DEFAULT_QUEUE": f"celery-{name}", **more}
    if database is not None:
        made = f"{name}-{uuid.uuid4().hex[:8]}"
        env["DATABASE_URL"] = server(database).create_database(made)  # type: ignore[attr-defined]
    if broker is not None:
        env["CELERY_BROKER_URL"] = server(broker).url
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n0",
        "-m",
        marks,
        "-q",
        "-p",
        "no:randomly",
        "--tb=short",
        "--maxfail=5",
    ]
    command += paths
    if "JOBS_TEST_REQUIRE_SERVERS" in os.environ:
        # As .ci/run does it: the machine may be busy, and what fails three times has failed.
        command += ["--reruns", "2", "--reruns-delay", "5"]
    log = Path(tempfile.mkdtemp(prefix=f"jobs-cell-{name}-")) / "log"
    with log.open("wb") as out:
        code = subprocess.run(
            die_with_parent(*command), cwd=ROOT, env=env, stdout=out, stderr=out, timeout=2700
        ).returncode
    output = log.read_text(errors="replace")
    assert code == 0, output[-8000:]
    assert " passed" in output


@pytest.mark.slow
def test_what_a_database_decides_on_the_other_one():
    run_cell("postgres-jobs", "database and not slow")


@pytest.mark.slow
def test_what_a_database_decides_where_history_goes_by_the_day():
    core = "lifecycle", "maintenance", "store", "calling", "idempotency"
    contrib = "history", "verify", "operator", "canvas", "limits", "durable", "tags", "grouped", "fair"
    rooms = *(f"tests/core/{name}" for name in core), *(f"tests/contrib/{name}" for name in contrib)
    more = {"JOBS_TEST_SETTINGS": json.dumps({"HISTORY_BY_DAY": True})}
    run_cell("postgres-jobs", "database and not slow", *rooms, **more)
    # The cell of what takes its time has no partitions.
    run_cell("postgres-jobs", "database and slow", "tests/contrib/history", **more)


@pytest.mark.slow
def test_what_a_database_decides_on_mariadb():
    """Those that start many workers take their time on the other databases."""
    run_cell("mariadb-jobs", "(core or database) and not slow")
    run_cell("mariadb-jobs", "database and slow", "tests/contrib/durable/test_faults.py")


#: Of half an hour in one process, about a third each. The longest begins first: three cells run at a time.
THIRDS = [["durable", "events"], ["aio", "grouped", "races"]]


@pytest.mark.slow
@pytest.mark.parametrize("rooms", [None, *THIRDS], ids=["rest", "durable", "aio"])
def test_what_a_database_decides_and_takes_its_time_on_the_other_one(rooms):
    paths = [f"tests/contrib/{room}" for room in rooms or sum(THIRDS, [])]
    which = paths if rooms else [f"--ignore={path}" for path in paths]
    run_cell("postgres-jobs", "database and slow and not core", *which)


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS)
def test_core_on(cell):
    run_cell(cell, "core or wide" if IS_WIDE else "core")


@pytest.mark.slow
@pytest.mark.skipif(not IS_WIDE, reason="JOBS_TEST_MATRIX=wide runs these pairs as well")
@pytest.mark.parametrize("pair", PAIRS)
def test_core_on_the_other_pairs(pair):
    run_cell(pair, "core")


@pytest.mark.skipif("JOBS_TEST_COMBINATION" not in os.environ, reason="noxfile.py runs it, in other environments")
def test_the_core_in_another_combination_of_releases():
    run_cell("postgres-jobs", "core and not slow", "tests/core")
    # They send statements past Django's log, several in one message.
    rooms = "tests/core/store", "tests/contrib/durable", "tests/contrib/aio", "tests/contrib/events/test_events.py"
    run_cell("postgres-jobs", "database and not slow", *rooms)
