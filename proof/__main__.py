"""Check the models of the protocol, with all their guards: ``python -m proof``."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from proof import page, spin
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


def play(arguments: argparse.Namespace) -> int:
    """Play ways through the model of ownership against the code."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django
    from django.db import Error, connection

    django.setup()
    logging.disable()
    from proof.player import Differs, Player

    connection.creation.create_test_db(verbosity=0, autoclobber=True)
    player, began, steps, wrong = Player(), time.monotonic(), 0, 0
    try:
        if arguments.trace:
            ways = iter([[line.strip() for line in arguments.trace]])
        else:
            seeds = range(arguments.seed, arguments.seed + arguments.traces)
            ways = spin.walks("ownership", ("FAULTS=3",), seeds)
        for number, way in enumerate(ways):
            try:
                player.play(way)
            except (Differs, Error) as exc:
                wrong += 1
                _say(f"seed {arguments.seed + number}: {exc}")
            steps += len(way)
            if number % 100 == 99:
                player.close()
                player = Player()
    finally:
        player.close()
        connection.creation.destroy_test_db(connection.settings_dict["NAME"], verbosity=0)
    took = time.monotonic() - began
    _say(
        f"{connection.vendor}: {number + 1} traces, {steps} steps and rows, {took:.0f} s: {wrong or 'nothing'} differs"
    )
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m proof",
        description="Search all states of the models of the protocol for what must not be; then take each guard out, "
        "and demand that it is missed. Exit code 1: something does not hold, or nobody misses a guard.",
    )
    parser.add_argument("--only", default="", metavar="NAME", help="the models whose name has this in it")
    parser.add_argument("--deep", action="store_true", help="the larger bounds as well: minutes, and gigabytes")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each check")
    parser.add_argument("--write", action="store_true", help="write docs/explanation/proof.md")
    parser.add_argument("-j", type=int, default=2, metavar="N", help="so many side by side (2)")
    parser.set_defaults(call=check_all)
    plays = parser.add_subparsers().add_parser("play", help="play traces of the model of ownership against the code")
    plays.add_argument("--traces", type=int, default=100, metavar="N", help="so many, each by chance (100)")
    plays.add_argument("--seed", type=int, default=1, metavar="S", help="of the first one (1); the next one has S + 1")
    plays.add_argument("--trace", type=argparse.FileType(), metavar="FILE", help="only the one in this file")
    plays.set_defaults(call=play)
    arguments = parser.parse_args()
    try:
        return int(arguments.call(arguments))
    except spin.Missing as exc:
        sys.stderr.write(f"{exc}\n")
        return 1


def check_all(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    rows = run(arguments.only, arguments.deep, arguments.j)
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
    if not arguments.only and not arguments.deep:
        if arguments.write:
            page.PAGE.write_text(page.text(rows))
        elif page.PAGE.read_text() != page.text(rows):
            sys.stderr.write("docs/explanation/proof.md is out of date: python -m proof --write\n")
            wrong += 1
    if not arguments.json:
        states = sum(row["states"] for row in rows)
        _say(f"{len(rows)} checks, {states} states, {time.monotonic() - began:.0f} s: {wrong or 'nothing'} is wrong")
    return 1 if wrong or not rows else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
