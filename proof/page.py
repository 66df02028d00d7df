"""The page of the documentation: what is proved, and what happens without each guard."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from proof import spin
from proof.checks import MODELS
from proof.guards import OUT

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "proof.md"
#: The counterexample of each guard, with the rows after each step, by its model and name.
TRACES = Path(__file__).parent / "traces.json"
DATABASES = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "mysql": "MariaDB"}

HEAD = """# What is proved

<!-- Written by `python -m proof --write`. -->

The parts of the protocol that decide who owns what stand as small models in `proof/models`. SPIN searches **all** their
states: every order of steps, and a fault at every step. Then each guard is taken out of the model, and the search has
to find what goes wrong: a check that cannot fail would be worth nothing. `python -m proof` does all of it, in CI too.

**Why SPIN.** It is known in the field, it searches a million states a second, and it is one package of Debian. TLC
needs Java. A checker of our own would have to be believed first.

**A model is not the code.** `python -m proof play` takes ways through the models, by chance, and plays them with the
real functions on real connections, on SQLite, PostgreSQL and MariaDB. After each step the rows are what the model says.
A guard is taken out of the code as well: then the counterexample of the model plays to its end there, and with the
guard it does not. The table says for which guards, and on which databases. A crash of the database is made up: the
player puts the rows back.

**What a model assumes.** One statement of the database is one step. A committed row is not lost, unless its commit was
asynchronous and the server crashed. A token of 63 bits comes once. Bounds are small: what needs more processes, jobs or
faults than the table says is not found.
"""


def text(rows: Sequence[dict[str, Any]]) -> str:
    found = {(row["model"], row["check"]): row for row in rows}
    parts = [
        HEAD,
        f"\nSearched with {spin.version()}.\n",
        "\n## What was searched\n\n| model | bounds | states |\n|---|---|---|\n",
    ]
    whole = [row for row in rows if not row["check"].startswith("without: ")]
    parts += [f"| {row['model']} | {row['check']} | {row['states']} |\n" for row in whole]
    head = "| model | guard | where | without it | taken out of the code |\n|---|---|---|---|---|\n"
    parts.append(f"\n## The guards\n\n{head}")
    for model in MODELS:
        for each in model.guards:
            said = f"{model.name} | {each.name} | `{each.code}` | {each.breaks} | {in_code(model.name, each.name)}"
            parts.append(f"| {said} |\n")
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


#: What another release of SPIN may say otherwise: how many states there are, and the way of a counterexample.
_OF_SPIN = re.compile(r"^\d+\. `.*`\n|^Searched with .*|(?<=\|) \d+ (?=\|$)", re.MULTILINE)
_SEARCHED = re.compile(r"^Searched with .*", re.MULTILINE)


def is_current(rows: Sequence[dict[str, Any]]) -> bool:
    """Whether the page says what was found: all of it, or, if another release of SPIN wrote it, the rest."""
    page, found = PAGE.read_text(), text(rows)
    if _SEARCHED.findall(page) == _SEARCHED.findall(found):
        return page == found and TRACES.read_text() == traces(rows)
    return _OF_SPIN.sub("", page) == _OF_SPIN.sub("", found)


def in_code(model: str, guard: str) -> str:
    """Where the guard is taken out of the code, or why not."""
    out = OUT[model, guard]
    if isinstance(out, str):
        return out
    where = "each database" if len(out.on) == len(DATABASES) else ", ".join(DATABASES[name] for name in out.on)
    by = f", by {out.by}" if out.by else ""
    return f"on {where}{by}" if out.is_guard else "the code goes this way as it is"


def traces(rows: Sequence[dict[str, Any]]) -> str:
    found: dict[str, dict[str, Any]] = {model.name: {} for model in MODELS}
    for row in rows:
        if row["check"].startswith("without: "):
            found[row["model"]][row["check"].removeprefix("without: ")] = row["trace"]
    return json.dumps(found, indent=1) + "\n"
