"""Take each guard out and see its scenario fail: ``python -m tests.faults.unguarded [-k EXPR] [-j N] [--list]``.

For each guard a copy of the repository without it, in a temporary directory, in which its scenario runs in one cell.
A scenario that still passes does not hold what it says, or the guard is not one. Read the reasons as well: a scenario
may also fail because the rest cannot live without the guard.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.faults.guards import ROOT, Guard, read_all

#: Seconds until a scenario without its guard is ended, and counts as failed.
LONGEST = 400

SKIPPED = shutil.ignore_patterns(".*", "__pycache__", "*.sqlite3*", "build", "*.egg-info", "var")


class _Collector:
    """A plugin that notes which items a selection has."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    def pytest_collection_finish(self, session: Any) -> None:
        self.items = list(session.items)


def collect(expression: str) -> list[tuple[Guard, str]]:
    """Each guard of the selected scenarios with the first cell that it fits."""
    collector = _Collector()
    arguments = ["tests/faults", "--faults=all", "--collect-only", "-m", "not long", "-p", "no:terminal"]
    arguments += ["-p", "no:randomly", "-k", expression]
    # The items keep what they need of the session; nothing is run.
    code = pytest.main([f"--rootdir={ROOT}", *arguments], plugins=[collector])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise SystemExit(f"the scenarios cannot be collected: pytest said {code!r}")
    found: dict[tuple[str, Guard], str | None] = {}
    for item in collector.items:
        scenario = item.nodeid.partition("[")[0]
        for mark in item.iter_markers("guard"):
            (guard,) = mark.args
            key = (scenario, guard)
            if found.get(key) is None:
                found[key] = item.nodeid if guard.fits(item.nodeid) else None
    for (scenario, guard), node_id in found.items():
        if node_id is None and not expression:
            raise SystemExit(f"{scenario} has no case {guard.case}")
    return [(guard, node_id) for (_, guard), node_id in found.items() if node_id is not None]


def run(guard: Guard, node_id: str) -> tuple[bool, str]:
    """Whether the scenario failed without its guard, and the reason that it gave."""
    with tempfile.TemporaryDirectory(prefix="jobs-unguarded-") as directory:
        copy = Path(directory, "repository")
        shutil.copytree(ROOT, copy, ignore=SKIPPED)
        try:
            guard.take_out(copy)
        except (ValueError, SyntaxError) as exc:
            return False, f"it cannot be taken out: {exc}"
        command = [sys.executable, "-m", "pytest", node_id, "--faults=all", "-m", "", "-q", "-rA", "--tb=short", "-n0"]
        environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=LONGEST)
        except subprocess.TimeoutExpired:
            return True, f"it did not end within {LONGEST} s"
        if done.returncode == pytest.ExitCode.OK:
            return False, "it passes all the same" if " passed" in done.stdout else "it was skipped"
        if done.returncode != pytest.ExitCode.TESTS_FAILED or not re.search(r"^FAILED ", done.stdout, re.M):
            # An error of a fixture, or of the collection, is no failure of the scenario.
            return False, f"it could not be run: {done.stdout[-1500:]}{done.stderr[-1500:]}"
        reasons = re.findall(r"^E +(.+)$", done.stdout, re.M)
        return True, reasons[0] if reasons else done.stdout[-500:]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.unguarded", description=__doc__)
    parser.add_argument("-k", default="", metavar="EXPR", help="as of pytest: which scenarios")
    parser.add_argument("-j", type=int, default=2, metavar="N", help="so many side by side (2)")
    parser.add_argument(
        "--list", action="store_true", help="say what would be taken out, and which scenarios have none"
    )
    arguments = parser.parse_args()
    os.chdir(ROOT)
    pairs = collect(arguments.k)
    if arguments.list:
        for guard, node_id in pairs:
            _say(f"{node_id}\n    {guard}")
        for scenario in read_all():
            if not scenario.guards:
                _say(f"{scenario.name} has no guard")
        return 0
    wrong = 0
    with ThreadPoolExecutor(arguments.j) as threads:
        results = [(guard, node_id, threads.submit(run, guard, node_id)) for guard, node_id in pairs]
        for guard, node_id, result in results:
            failed, reason = result.result()
            wrong += not failed
            _say(f"{'fails ' if failed else 'WRONG '} {node_id}\n    without {guard}\n    {reason[:300]}")
    _say(f"{len(pairs) - wrong} guards hold their scenarios, {wrong} do not")
    return 1 if wrong or not pairs else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
