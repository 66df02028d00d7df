"""Check the models of the protocol, with all their guards: ``python -m proof``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from proof import spin
from proof.checks import MODELS, Bounds, Guard, Model


def check(model: Model, bounds: Bounds) -> dict[str, Any]:
    found = spin.search(model.name, bounds.flags, bounds.is_deep)
    row = {"model": model.name, "check": bounds.says, "states": found.states, "seconds": found.seconds}
    return row | {"holds": found.trace is None, "trace": found.trace}


def check_ends(model: Model) -> dict[str, Any]:
    """Of the smallest bounds: each run is finite."""
    found = spin.search_cycles(model.name, model.bounds[0].flags)
    row = {"model": model.name, "check": "every run ends", "states": found.states, "seconds": found.seconds}
    return row | {"holds": found.trace is None, "trace": found.trace}


def check_guard(model: Model, guard: Guard) -> dict[str, Any]:
    found = spin.search(model.name, guard.flags)
    row = {"model": model.name, "check": f"without: {guard.name}", "states": found.states, "seconds": found.seconds}
    return row | {"holds": found.trace is not None, "trace": found.trace, "breaks": guard.breaks}


def run(only: str, deep: bool, jobs: int) -> list[dict[str, Any]]:
    """All checks, in the order of the models; some at a time."""
    with ThreadPoolExecutor(jobs) as threads:
        results = []
        for model in MODELS:
            if only not in model.name:
                continue
            some = [bounds for bounds in model.bounds if deep or not bounds.is_deep]
            results += [threads.submit(check, model, bounds) for bounds in some]
            if model.ends:
                results.append(threads.submit(check_ends, model))
            results += [threads.submit(check_guard, model, guard) for guard in model.guards]
        return [result.result() for result in results]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m proof",
        description="Search all states of the models of the protocol for what must not be; then take each guard out, "
        "and demand that it is missed. Exit code 1: something does not hold, or nobody misses a guard.",
    )
    parser.add_argument("--only", default="", metavar="NAME", help="the models whose name has this in it")
    parser.add_argument("--deep", action="store_true", help="the larger bounds as well: minutes, and gigabytes")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each check")
    parser.add_argument("-j", type=int, default=2, metavar="N", help="so many side by side (2)")
    arguments = parser.parse_args()
    began = time.monotonic()
    try:
        rows = run(arguments.only, arguments.deep, arguments.j)
    except spin.Missing as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    for row in rows:
        if arguments.json:
            _say(json.dumps(row))
            continue
        is_guard = row["check"].startswith("without: ")
        word = ("fails " if is_guard else "holds ") if row["holds"] else "WRONG "
        _say(f"{word} {row['model']:10} {row['states']:>9} states {row['seconds']:6.1f} s  {row['check']}")
        if not row["holds"]:
            _say("\n".join(f"         {step}" for step in row["trace"] or ["nobody misses it"]))
    wrong = sum(not row["holds"] for row in rows)
    if not arguments.json:
        states = sum(row["states"] for row in rows)
        _say(f"{len(rows)} checks, {states} states, {time.monotonic() - began:.0f} s: {wrong or 'nothing'} is wrong")
    return 1 if wrong or not rows else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
