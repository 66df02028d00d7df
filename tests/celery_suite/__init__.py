"""Celery's own integration tests, of the release that is installed, with our task class.

``python -m tests.celery_suite [--stock] [test ...]`` runs them by hand; ``--stock`` with Celery's own task
class and worker, to compare. What may differ, and why, is in ``differences.toml``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import celery

from tests.helpers.sdist import sdist, unpack
from tests.helpers.servers import Postgres, Redis, die_with_parent

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
#: Of ``t/integration``, what calls tasks and waits for a worker. The rest tries Celery's command line, its leaks, its
#: reconnection, and its result backends by themselves.
TESTS = (
    *(f"test_{name}.py" for name in "beat canvas group_chains inspect loader tasks".split()),
    "test_redis_backend.py::test_concurrent_result_gets_on_shared_pubsub",
    "test_redis_backend.py::test_chord_part_return_records_each_header_task_once",
    "test_worker.py::test_pidbox_reset_after_repeated_control_errors",
)
#: So many processes, each with a worker, share them.
HANDS = 3


def differences() -> dict[str, dict[str, str]]:
    """For each list its tests, each with the reason why it fails."""
    found = tomllib.loads((HERE / "differences.toml").read_text())
    return {name: {test: group["why"] for group in groups for test in group["tests"]} for name, groups in found.items()}


def source() -> Path:
    """The source distribution of the Celery that is installed; raises as ``sdist``."""
    return sdist("celery", celery.__version__)


def run(postgres: Postgres | None, *tests: str, patience: int = 1) -> dict[str, dict[str, str]]:
    """Run the tests beside real workers; for each test its outcome, and what it says.

    They mostly wait: they are dealt out to several processes, each with its own Redis, database and worker.

    Parameters:
        postgres: where our jobs live; None: Celery's own task class.
        tests: as in ``differences.toml``; none: all.
        patience: by how much longer the canvas tests sleep where they trust a fixed time, on a busy machine.
    """
    tests = tests or TESTS
    with tempfile.TemporaryDirectory(prefix="jobs-celery-suite-") as folder:
        top = unpack(Path(folder), "celery", celery.__version__, "t/", "pyproject.toml")
        with ThreadPoolExecutor(HANDS) as hands:
            parts = hands.map(lambda hand: _run(hand, top, postgres, tests, patience), range(HANDS))
        return {line["test"]: line for part in parts for line in part}


def _run(
    hand: int, folder: Path, postgres: Postgres | None, tests: tuple[str, ...], patience: int
) -> list[dict[str, str]]:
    redis, results = Redis(), folder / f"results-{hand}"
    environment = {
        **os.environ,
        "PYTHONPATH": f"{folder}:{ROOT}",
        "TEST_BROKER": f"redis://127.0.0.1:{redis.port}/1",
        "TEST_BACKEND": redis.url,
        "REDIS_HOST": "127.0.0.1",
        "REDIS_PORT": str(redis.port),
        "CELERY_SUITE_HAND": f"{hand}/{HANDS}",
        "CELERY_SUITE_PATIENCE": str(patience),
        "CELERY_SUITE_RESULTS": str(results),
    }
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    try:
        if postgres is not None:
            database = postgres.create_database(f"celery_suite_{uuid4().hex}")
            environment |= {"DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": database}
            command = [sys.executable, str(ROOT / "manage.py"), "migrate", "--verbosity", "0"]
            subprocess.run(command, env=environment, check=True)
        command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-p", "tests.celery_suite.plugin", "-q"]
        command += [f"-pno:{name}" for name in ("cacheprovider", "django", "randomly", "rerunfailures", "xdist")]
        command = die_with_parent(*command, *(f"t/integration/{each}" for each in tests))
        done = subprocess.run(command, env=environment, cwd=folder)
        # All that were dealt out passed, or some failed, or none were.
        assert done.returncode in (0, 1, 5), f"pytest ended with {done.returncode}"
        return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    finally:
        redis.stop()


def main() -> None:
    tests = [each for each in sys.argv[1:] if each != "--stock"]
    found = run(None if "--stock" in sys.argv else Postgres(), *tests)
    for test, line in found.items():
        print(f"{line['outcome']} {line['seconds']:.1f} {test} {line['says'][-300:]!r}")  # noqa: T201
