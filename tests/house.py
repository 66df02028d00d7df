"""How large the house is, and how long its ways are: ``python -m tests.house [--json]``.

``--without NAME`` runs the core's own tests in a copy without an extension (``tests/helpers/without.py``).

``DATABASE_URL`` says where; without it, on SQLite. The ways are counted while they are gone: one plain ``delay()``,
and the run of one job, each after a first one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import jobs
from jobs import extensions
from tests.helpers import without

HOME = Path(jobs.__file__).parent

#: Where the core's SQL is: a room; and that of an extension: a file.
STORE, OWN_STORE = "store", "store.py"

CELERY = re.compile(r"^\s*(?:from|import) (?:celery|kombu|billiard|amqp|vine)\b", re.M)
VENDOR = re.compile(r"\.vendor\b|\bvendor\s*[=!]=")
SQL = re.compile(
    r"\b(?:SELECT|UPDATE|DELETE FROM|INSERT INTO|TRUNCATE|NOTIFY|LISTEN|PRAGMA|pg_\w+)\b"
    r"[^\"'\n]*\b(?:jobs_\w+|FROM|SET|\()"
)


def sources() -> dict[Path, str]:
    """The files of the app, without its migrations."""
    found = {path: path.read_text() for path in sorted(HOME.rglob("*.py"))}
    return {path: text for path, text in found.items() if "migrations" not in path.parts}


def lines() -> dict[str, int]:
    """Lines of Python in each room; the extensions are rooms."""
    found: Counter[str] = Counter()
    for path, text in sources().items():
        parts = path.relative_to(HOME).parts
        room = next(filter(path.is_relative_to, extensions.folders().values()), HOME / parts[0])
        found[str(room.relative_to(HOME)).removesuffix(".py")] += text.count("\n")
    return dict(found)


def files(pattern: re.Pattern[str]) -> list[str]:
    """The files in which something stands."""
    return [str(path.relative_to(HOME)) for path, text in sources().items() if pattern.search(text)]


def outside(paths: list[str]) -> list[str]:
    """Those of them that are no store."""
    return [path for path in paths if Path(path).parts[0] != STORE and Path(path).name != OWN_STORE]


def way(go: Callable[[], Any]) -> dict[str, Any]:
    """Which functions of ours are called while it runs, how often, and how many lines of code they have."""
    called: Counter[CodeType] = Counter()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        # What is in angle brackets, a comprehension say, is a part of the function around it.
        if event == "call" and code.co_filename.startswith(f"{HOME}{os.sep}") and code.co_name[0] != "<":
            called[code] += 1

    sys.setprofile(note)
    try:
        go()
    finally:
        sys.setprofile(None)
    return {
        "functions": len(called),
        "calls": sum(called.values()),
        "files": len({code.co_filename for code in called}),
        "lines": sum(len({line for _, _, line in code.co_lines() if line}) for code in called),
        "names": sorted(f"{Path(c.co_filename).relative_to(HOME)}:{c.co_qualname}" for c in called),  # type: ignore[attr-defined]
    }


def ways() -> dict[str, dict[str, Any]]:
    """The way of a call, and of a run (claim, body, completion), in a database of its own."""
    from celery import current_app
    from django.db import transaction
    from django.test.utils import get_runner, setup_test_environment

    from jobs.lifecycle.worker_state import worker_state
    from jobs.models import Job, Node
    from jobs.models.fields import uuid7
    from jobs.worker.runner import Runner
    from tests import tasks

    setup_test_environment()
    runner = get_runner(__import__("django.conf").conf.settings)(verbosity=0, interactive=False)
    before = runner.setup_databases()
    try:
        app = current_app._get_current_object()
        worker_state.node, worker_state.queues = uuid7(), [app.conf.task_default_queue]
        Node.objects.create(pk=worker_state.node, hostname="here", pid=os.getpid())
        process = Runner(app, "here")

        def call() -> None:
            with transaction.atomic():
                tasks.noop.delay(1)

        def run() -> None:
            process.run_batch()

        for _ in range(20):
            call()
        found = {"call": way(call)}
        while process.run_batch():
            pass
        call()
        found["run"] = way(run)
        assert not Job.objects.exclude(state="succeeded").exists()
        process.slot.free()
        return found
    finally:
        runner.teardown_databases(before)


def figures() -> dict[str, Any]:
    from django.apps import apps

    rooms = lines()
    names = {str(folder.relative_to(HOME)) for folder in extensions.folders().values()}
    of_extensions = [count for room, count in rooms.items() if room in names]
    tables = [model._meta.db_table for model in apps.get_app_config("jobs").get_models() if not model._meta.proxy]
    return {
        "lines": sum(rooms.values()),
        "core": sum(rooms.values()) - sum(of_extensions),
        "rooms": rooms,
        "largest extension": max(of_extensions, default=0),
        "stores of extensions": [path for path in files(SQL) if Path(path).name == OWN_STORE],
        "files that write SQL outside of the stores": outside(files(SQL)),
        "files that ask for a vendor outside of the stores": outside(files(VENDOR)),
        "files that import Celery": files(CELERY),
        "tables": sorted(tables),
        **ways(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="everything, with names")
    parser.add_argument(
        "--without",
        metavar="NAME",
        choices=[without.ALL, *without.names()],
        help="run the core's own tests in a copy in which this extension is gone, or all",
    )
    options = parser.parse_args()
    if options.without:
        raise SystemExit(1 if without.run(options.without).returncode else 0)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django

    django.setup()
    found = figures()
    if options.json:
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
        return
    for name, value in found.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {each}" for key, each in value.items() if key != "names")
        sys.stdout.write(f"{name}: {len(value) if isinstance(value, list) else value}\n")


if __name__ == "__main__":
    main()
