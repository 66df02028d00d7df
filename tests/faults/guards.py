"""What each scenario holds up, as data: the function of ``jobs`` without which it has to fail.

``python -m tests.faults.unguarded`` takes it out, in a copy of the repository, and expects the scenario to fail.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@dataclass(frozen=True)
class Without:
    """Something of ``jobs`` by its name, and the expression that takes its place.

    Parameters:
        name: the module and the dotted name in it, such as ``jobs.maintenance.rescue:OwnJobs.finish_dead``: a function
            (also one inside another), a class, or what is assigned at their top.
        becomes: what the function returns at once; what is assigned; or what stands for the ``call`` or ``clause``. It
            may use what is known at that place.
        call: take out only this one call in it, by its dotted name: ``rescue.bury``. If it is called on the result of
            another call, by what follows that.
        clause: take out only this text in it, where nothing has a name. It is in there exactly once.
    """

    name: str
    becomes: str = "None"
    call: str = ""
    clause: str = ""

    def file(self, root: Path = ROOT) -> Path:
        path = root.joinpath(*self.name.partition(":")[0].split("."))
        return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")

    def taken_out(self, source: str) -> str:
        """The module's source without it; still Python.

        Raises:
            ValueError: it is not there exactly once: the code has changed, and the mark has to follow.
        """
        node = self._node(ast.parse(source))
        lines = source.encode().splitlines(keepends=True)
        starts = [sum(map(len, lines[:index])) for index in range(len(lines))]
        text, new = source.encode(), self.becomes

        def span(first: Any, last: Any) -> tuple[int, int]:
            return starts[first.lineno - 1] + first.col_offset, starts[last.end_lineno - 1] + last.end_col_offset

        if self.call:
            found = [each for each in ast.walk(node) if isinstance(each, ast.Call) and self._is_called(each.func)]
            self._check_once(len(found), f"a call of {self.call}")
            begin, end = span(found[0], found[0])
            new = f"({new})"
        elif self.clause:
            begin, end = span(node, node)
            self._check_once(text[begin:end].decode().count(self.clause), repr(self.clause))
            begin += text[begin:end].index(self.clause.encode())
            end = begin + len(self.clause.encode())
        elif isinstance(node, ast.FunctionDef):
            begin, end = span(node.body[0], node.body[-1])
            new = f"return {new}"
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            begin, end = span(node.value, node.value)
            new = f"({new})"
        else:
            raise ValueError(f"{self.name} is neither a function nor something assigned: name a call or a clause in it")
        result = (text[:begin] + new.encode() + text[end:]).decode()
        compile(result, self.name, "exec")
        return result

    def _node(self, tree: ast.AST) -> Any:
        found = [tree]
        for part in self.name.partition(":")[2].split("."):
            found = [each for parent in found for each in _below(parent) if part in _names(each)]
        self._check_once(len(found), "something of this name")
        return found[0]

    def _is_called(self, function: ast.expr) -> bool:
        parts = []
        while isinstance(function, ast.Attribute):
            parts.append(function.attr)
            function = function.value
        if isinstance(function, ast.Name):
            parts.append(function.id)
        return self.call == ".".join(reversed(parts))

    def _check_once(self, count: int, what: str) -> None:
        if count != 1:
            raise ValueError(f"{self.name}: {count} times, and not once: {what}")

    def __str__(self) -> str:
        part = f" {self.call}()" if self.call else f" {self.clause!r}" if self.clause else ""
        return f"{self.name}{part} -> {self.becomes}"


def _below(parent: ast.AST) -> Iterator[ast.AST]:
    """What stands in a module, a class or a function, also under an ``if``, but not in what is defined there."""
    for node in ast.iter_child_nodes(parent):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from _below(node)


def _names(node: ast.AST) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {ast.unparse(target) for target in targets}


@dataclass(frozen=True)
class Guard:
    """What holds a scenario up. Of several parts each stands behind the one before; they are taken out together."""

    parts: tuple[Without, ...]
    #: Words that the scenario's id must hold: the parameters under which the guard is needed.
    case: tuple[str, ...] = ()

    def fits(self, node_id: str) -> bool:
        parameters = node_id.partition("[")[2].rstrip("]")
        return all(f"-{word}-" in f"-{parameters}-" for word in self.case)

    def take_out(self, root: Path) -> None:
        """Edit the files below ``root``. Raises ValueError as :meth:`Without.taken_out` does."""
        for part in self.parts:
            file = part.file(root)
            file.write_text(part.taken_out(file.read_text()))

    def __str__(self) -> str:
        return "; ".join(map(str, self.parts))


def guard(*parts: str | Without, case: str = "") -> pytest.MarkDecorator:
    """Mark a scenario with a guard without which it fails; several marks are taken out one by one.

    Parameters:
        parts: what is taken out together; a name alone is a function that does nothing any more.
        case: run the scenario with these parameters (words of its id): ``"redis"``, ``"before_ack sqlite"``.
    """
    whole = tuple(Without(part) if isinstance(part, str) else part for part in parts)
    return pytest.mark.guard(Guard(whole, tuple(case.split())))


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
