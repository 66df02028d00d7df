"""Check the models of the protocol, with all their guards: ``python -m proof``."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from proof import page, spin
from proof.checks import MODELS, Bounds, Guard, Model
from proof.guards import OUT, Code


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


@contextmanager
def _database() -> Iterator[Any]:
    """An empty database; the connection to it."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django
    from django.db import connection

    django.setup()
    logging.disable()
    connection.creation.create_test_db(verbosity=0, autoclobber=True)
    try:
        yield connection
    finally:
        connection.creation.destroy_test_db(connection.settings_dict["NAME"], verbosity=0)


def check_code(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same guards are taken out of the code: by its trace each one is missed there as well."""
    guards = [(row, OUT.get((row["model"], row["check"].removeprefix("without: ")))) for row in rows]
    codes = [(row, code) for row, code in guards if isinstance(code, Code) and row["trace"] is not None]
    if not codes:
        return []
    found = []
    with _database() as connection:
        from proof.players import PLAYERS, plays

        for row, code in codes:
            if connection.vendor not in code.on or code.by:
                continue
            began = time.monotonic()
            with plays(PLAYERS[row["model"]]) as player:
                wrong = player.misses(code, row["trace"])
            says = f"{row['check']}, in the code on {connection.vendor}"
            done = {"model": row["model"], "check": says, "states": 0, "seconds": time.monotonic() - began}
            found.append(done | {"holds": not wrong, "trace": [wrong]})
    return found


def play(arguments: argparse.Namespace) -> int:
    """Play ways through the models against the code."""
    wrong = 0
    with _database():
        from proof.players import PLAYERS

        for name, kind in PLAYERS.items():
            if arguments.model in ("", name):
                wrong += _play(kind, arguments)
    return 1 if wrong else 0


def _play(kind: Any, arguments: argparse.Namespace) -> int:
    from django.db import Error, connection

    from proof.player import Differs

    player, began, steps, wrong, number = kind(), time.monotonic(), 0, 0, 0
    try:
        if arguments.trace:
            ways = iter([[line.strip() for line in arguments.trace]])
        else:
            seeds = range(arguments.seed, arguments.seed + arguments.traces)
            ways = spin.walks(kind.model, player.flags, seeds)
        for number, way in enumerate(ways, 1):
            try:
                player.play(way)
            except (Differs, Error) as exc:
                wrong += 1
                _say(f"seed {arguments.seed + number - 1}: {exc}")
            steps += len(way)
            if number % 100 == 0:
                player.close()
                player = kind()
    finally:
        player.close()
    took = time.monotonic() - began
    says = f"{number} traces, {steps} steps and rows, {took:.0f} s: {wrong or 'nothing'} differs"
    _say(f"{connection.vendor}, {kind.model}: {says}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m proof",
        description="Search all states of the models of the protocol for what must not be; then take each guard out, "
        "of the model and of the code, and demand that it is missed. Exit code 1: something does not hold, or nobody "
        "misses a guard.",
    )
    parser.add_argument("--only", default="", metavar="NAME", help="the models whose name has this in it")
    parser.add_argument("--deep", action="store_true", help="the larger bounds as well: minutes, and gigabytes")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each check")
    parser.add_argument("--write", action="store_true", help="write docs/explanation/proof.md")
    parser.add_argument("-j", type=int, default=2, metavar="N", help="so many side by side (2)")
    parser.set_defaults(call=check_all)
    plays = parser.add_subparsers().add_parser("play", help="play traces of the models against the code")
    plays.add_argument("--traces", type=int, default=100, metavar="N", help="so many of each model, by chance (100)")
    plays.add_argument("--model", default="", metavar="NAME", help="only of this model")
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
    in_code = check_code(rows)
    for row in rows + in_code:
        if arguments.json:
            _say(json.dumps(row))
            continue
        is_guard = row["check"].startswith("without: ")
        word = ("fails " if is_guard else "holds ") if row["holds"] else "WRONG "
        _say(f"{word} {row['model']:10} {row['states']:>9} states {row['seconds']:6.1f} s  {row['check']}")
        if not row["holds"]:
            _say("\n".join(f"         {step}" for step in row["trace"] or ["nobody misses it"]))
    wrong = sum(not row["holds"] for row in rows + in_code)
    if not arguments.only and not arguments.deep:
        if arguments.write:
            page.PAGE.write_text(page.text(rows))
            page.TRACES.write_text(page.traces(rows))
        elif not page.is_current(rows):
            sys.stderr.write("docs/explanation/proof.md is out of date: python -m proof --write\n")
            wrong += 1
    if not arguments.json:
        states = sum(row["states"] for row in rows)
        checks, took = len(rows + in_code), time.monotonic() - began
        _say(f"{checks} checks, {states} states, {took:.0f} s: {wrong or 'nothing'} is wrong")
    return 1 if wrong or not rows else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
