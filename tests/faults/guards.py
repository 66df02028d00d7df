"""What each scenario holds up, as data: the text of ``jobs`` without which it has to fail.

``python -m tests.faults.unguarded`` takes it out, in a copy of the repository, and expects the scenario to fail.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent

#: file, old, new
Edit = tuple[str, str, str]


@dataclass(frozen=True)
class Guard:
    """Some text of ``jobs`` that has to be there, exactly once in its file, and what stands there without the guard."""

    edits: tuple[Edit, ...]
    #: Words that the scenario's id must hold: the parameters under which the guard is needed.
    case: tuple[str, ...] = ()

    def fits(self, node_id: str) -> bool:
        parameters = node_id.partition("[")[2].rstrip("]")
        return all(f"-{word}-" in f"-{parameters}-" for word in self.case)

    def take_out(self, root: Path) -> None:
        """Edit the files below ``root``; what comes out is still Python.

        Raises:
            ValueError: a text is not there exactly once: the code has changed, and the mark has to follow.
        """
        for name, old, new in self.edits:
            file = root / name
            text = file.read_text()
            if (count := text.count(old)) != 1:
                raise ValueError(f"{count} times in {name}, and not once: {old!r}")
            text = text.replace(old, new)
            compile(text, name, "exec")
            file.write_text(text)

    def missing(self) -> Iterator[str]:
        """Of which text there is not exactly one."""
        for name, old, _ in self.edits:
            if (count := (ROOT / name).read_text().count(old)) != 1:
                yield f"{count} times in {name}, and not once: {old!r}"

    def __str__(self) -> str:
        return "; ".join(f"{name}: {old!r} -> {new!r}" for name, old, new in self.edits)


def guard(file: str, old: str, new: str = "", *, also: Sequence[Edit] = (), case: str = "") -> pytest.MarkDecorator:
    """Mark a scenario with a guard without which it fails; several marks are taken out one by one.

    Parameters:
        file: such as ``"jobs/lifecycle/transitions.py"``.
        old: the guard, a text that is there exactly once.
        new: what stands there without it.
        also: more of ``(file, old, new)`` to take out together with it, where one guard stands behind another.
        case: run the scenario with these parameters (words of its id): ``"redis"``, ``"before_ack sqlite"``.
    """
    return pytest.mark.guard(Guard(((file, old, new), *also), tuple(case.split())))


@dataclass
class Scenario:
    name: str
    guards: list[Guard] = field(default_factory=list)


def read_all() -> list[Scenario]:
    """All scenarios with their guards, without running anything."""
    return [
        Scenario(f"{path.name}::{name}", list(_guards(function)))
        for path in sorted(HERE.glob("test_*.py"))
        for name, function in vars(importlib.import_module(f"tests.faults.{path.stem}")).items()
        if name.startswith("test_") and inspect.isfunction(function)
    ]


def _guards(function: Any) -> Iterator[Guard]:
    for mark in getattr(function, "pytestmark", []):
        if mark.name == "guard":
            yield mark.args[0]
        elif mark.name == "parametrize":
            for value in mark.args[1]:
                yield from (each.args[0] for each in getattr(value, "marks", ()) if each.name == "guard")
