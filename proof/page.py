"""The page of the documentation: what is proved, and what happens without each guard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from proof.checks import MODELS

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "proof.md"

HEAD = """# What is proved

<!-- Written by `python -m proof --write`. -->

The parts of the protocol that decide who owns what stand as small models in `proof/models`. SPIN searches **all** their
states: every order of steps, and a fault at every step. Then each guard is taken out of the model, and the search has
to find what goes wrong: a check that cannot fail would be worth nothing. `python -m proof` does all of it, in CI too.

**Why SPIN.** It is known in the field, it searches a million states a second, and it is one package of Debian. TLC
needs Java. A checker of our own would have to be believed first.

**A model is not the code.** `python -m proof play` takes ways through the model of ownership, by chance, and plays them
with the real functions on real connections, on SQLite, PostgreSQL and MariaDB. After each step the rows are what the
model says. For the token and the state in the fence, and for the dead mark in the claim, the same guard is taken out of
the code, and then the counterexample plays to its end there as well. A crash of the database is made up: the player
puts the rows back. The other models are compared with the code by readers alone.

**What a model assumes.** One statement of the database is one step. A committed row is not lost, unless its commit was
asynchronous and the server crashed. A token of 63 bits comes once. Bounds are small: what needs more processes, jobs or
faults than the table says is not found.
"""


def text(rows: Sequence[dict[str, Any]]) -> str:
    found = {(row["model"], row["check"]): row for row in rows}
    parts = [HEAD, "## What was searched\n\n| model | bounds | states |\n|---|---|---|\n"]
    whole = [row for row in rows if not row["check"].startswith("without: ")]
    parts += [f"| {row['model']} | {row['check']} | {row['states']} |\n" for row in whole]
    parts.append("\n## The guards\n\n| model | guard | where | without it |\n|---|---|---|---|\n")
    for model in MODELS:
        parts += [f"| {model.name} | {each.name} | `{each.code}` | {each.breaks} |\n" for each in model.guards]
    for model in MODELS:
        parts.append(f"\n## {model.title}\n\n")
        parts += [f"* {each}\n" for each in model.properties]
        if model.without:
            parts.append(f"\nNot in it: {model.without[0].lower()}{model.without[1:]}\n")
        for each in model.guards:
            steps = found[model.name, f"without: {each.name}"]["trace"] or []
            said = [step.removeprefix("@ ") for step in steps if step.startswith("@ ")]
            parts.append(f"\n### Without: {each.name}\n\nThen {each.breaks}.\n\n")
            parts += [f"{number}. `{step}`\n" for number, step in enumerate(said, 1)]
    return "".join(parts)
