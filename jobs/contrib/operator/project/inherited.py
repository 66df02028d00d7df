"""The files of a project's settings, and which of them inherits from which, as ``from .base import *`` does."""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec
from pathlib import Path


class Family:
    """The loaded settings, and the settings beside them that inherit from the same modules.

    Parameters:
        module: the dotted name of the loaded settings; it has a file.
    """

    def __init__(self, module: str) -> None:
        self.module = module
        self.paths: dict[str, Path] = {}
        self.parents: dict[str, list[str]] = {}
        self._add(module)
        home = self.paths[module].parent
        package = module if self.paths[module].name == "__init__.py" else module.rpartition(".")[0]
        for path in sorted(home.glob("*.py")):
            self._add(package if path.name == "__init__.py" else f"{package}.{path.stem}")
        ours = {*self.chain(module)}
        kin = [name for name in self.paths if ours & {*self.chain(name)}]
        inherited = {parent for name in kin for parent in self.parents[name]}
        #: Settings that no other settings inherit from: processes name these. The loaded ones are among them.
        self.last = [name for name in kin if name not in inherited or name == module]
        common = set.intersection(*({*self.chain(name)} for name in self.last))
        #: The nearest settings that all of them inherit from; None if there are none.
        self.base = max(common, key=lambda name: len(self.chain(name)), default=None)

    def _add(self, module: str) -> None:
        """Note a module and what it inherits from, if it has a file."""
        if module in self.paths:
            return
        try:
            spec = find_spec(module)
        except (ImportError, ValueError):
            return
        if spec is None or not spec.origin or not spec.origin.endswith(".py"):
            return
        path = self.paths[module] = Path(spec.origin)
        self.parents[module] = []
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                root = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                parent = ".".join([*root, *filter(None, [node.module])])
                # This project cannot change the settings of another package.
                if parent.partition(".")[0] == module.partition(".")[0]:
                    self._add(parent)
                    self.parents[module] += [parent] if parent in self.paths else []

    def chain(self, module: str) -> list[str]:
        """The module, and all that it inherits from, the nearest first."""
        found = [module]
        for name in found:
            found += [parent for parent in self.parents[name] if parent not in found]
        return found

    def finds(self, pattern: str, module: str) -> str | None:
        """The nearest module of the :meth:`chain` whose text contains the pattern."""
        names = self.chain(module)
        return next((name for name in names if re.search(pattern, self.paths[name].read_text(), re.M)), None)
