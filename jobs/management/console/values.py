"""What a call passes, as far as the source tells: model instances, querysets and sets, which no job can carry."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

#: Methods of a manager that return a row; a pair with a row; a queryset.
ONE = set("get create first last latest earliest aget acreate afirst alast alatest aearliest".split())
PAIR = set("get_or_create update_or_create aget_or_create aupdate_or_create".split())
MANY = set(
    "all filter exclude order_by values values_list select_related prefetch_related annotate distinct only defer using "
    "none select_for_update".split()
)
MANAGER = re.compile(r"\.(objects|_default_manager|_base_manager)\b")

#: The kinds of values that no job can carry: what each is, and the cure.
KINDS = {
    "instance": ("a model instance", "Pass its primary key (.pk), and read the row again in the task."),
    "queryset": ("a queryset", "Pass a list of primary keys."),
    "set": ("a set", "Pass a sorted list."),
}

#: Methods of a task that take its arguments as their own; and those that take them as args and kwargs.
DIRECT = ("delay", "delay_on_commit", "adelay", "s", "si")
WRAPPED = ("apply_async", "apply_async_on_commit", "aapply_async")


class Values(ast.NodeVisitor):
    """Finds the calls of a file that pass such values: ``found`` has the line, a sentence and the cure of each."""

    def __init__(self, models: set[str]) -> None:
        self.models = models
        #: The names in scope: one of :data:`KINDS`, or None for anything else.
        self.known: dict[str, str | None] = {}
        self.found: list[tuple[int, str, str]] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_with(node, {"self": "instance" if node.name in self.models else None})

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        known = {each.arg: "instance" if self._is_model(each.annotation) else None for each in given}
        if any("task" in ast.unparse(each) for each in node.decorator_list):
            for each in given:
                if known[each.arg]:
                    says = f"the task {node.name} takes a model instance, {ast.unparse(each)}"
                    self.found.append((each.lineno, says, KINDS["instance"][1]))
        if "sender" in known and "instance" in known:
            # It is a receiver of a model's signal.
            known["instance"] = "instance"
        if "self" in known:
            known["self"] = self.known.get("self")
        self._visit_with(node, known)

    visit_AsyncFunctionDef = visit_FunctionDef

    def _visit_with(self, node: ast.AST, known: dict[str, str | None]) -> None:
        before, self.known = self.known, {**self.known, **known}
        self.generic_visit(node)
        self.known = before

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.known[target.id] = self._kind(node.value)
            elif isinstance(target, ast.Tuple):
                is_pair = self._method(node.value) in PAIR
                for number, each in enumerate(target.elts):
                    if isinstance(each, ast.Name):
                        self.known[each.id] = "instance" if is_pair and number == 0 else None

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        if isinstance(node.target, ast.Name):
            # The items of values() and values_list() are plain.
            is_rows = self._kind(node.iter) == "queryset" and ".values" not in ast.unparse(node.iter)
            self.known[node.target.id] = "instance" if is_rows else None
        self.generic_visit(node)

    visit_AsyncFor = visit_For

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        passed: list[ast.expr] = []
        if isinstance(node.func, ast.Attribute) and node.func.attr in DIRECT:
            passed = [*node.args, *(each.value for each in node.keywords)]
        elif isinstance(node.func, ast.Attribute) and node.func.attr in WRAPPED:
            passed = [*node.args[:2], *(each.value for each in node.keywords if each.arg in ("args", "kwargs"))]
        for value, kind in self._within(passed):
            what, cure = KINDS[kind]
            says = f"{ast.unparse(node.func)}() gets {ast.unparse(value)}, {what}: the call raises"
            self.found.append((node.lineno, says, cure))

    def _within(self, nodes: list[ast.expr]) -> Iterator[tuple[ast.expr, str]]:
        """The values that cannot be passed, also those in lists and dicts."""
        for node in nodes:
            if kind := self._kind(node):
                yield node, kind
            elif isinstance(node, ast.List | ast.Tuple):
                yield from self._within(node.elts)
            elif isinstance(node, ast.Dict):
                yield from self._within(node.values)

    def _is_model(self, annotation: ast.expr | None) -> bool:
        """Such as ``User``, ``models.User``, ``"User"``, ``User | None``, ``Optional[User]``."""
        text = "" if annotation is None else re.sub("['\"]", "", ast.unparse(annotation))
        text = re.sub(r"^(?:\w+\.)?Optional\[(.*)\]$", r"\1", text)
        return any(part.strip().rpartition(".")[2] in self.models for part in text.split("|"))

    def _method(self, node: ast.expr) -> str:
        """The last method of a chain that begins at a model's manager; empty for anything else."""
        node = node.value if isinstance(node, ast.Await) else node
        is_chain = isinstance(node, ast.Call) and MANAGER.search(ast.unparse(node.func))
        return last_name(node.func) if is_chain and isinstance(node, ast.Call) else ""

    def _kind(self, node: ast.expr) -> str | None:
        """One of :data:`KINDS`; None for what a job can carry, and for what is not known."""
        node = node.value if isinstance(node, ast.Await) else node
        if isinstance(node, ast.Set | ast.SetComp):
            return "set"
        if isinstance(node, ast.Name):
            return self.known.get(node.id)
        if isinstance(node, ast.Attribute):
            return "instance" if ast.unparse(node) in ("request.user", "self.request.user") else None
        if not isinstance(node, ast.Call):
            return None
        name, method = last_name(node.func), self._method(node)
        if method in ONE or name in self.models or name in ("get_object_or_404", "aget_object_or_404"):
            return "instance"
        return "queryset" if method in MANY else "set" if name == "set" else None


def last_name(node: ast.expr) -> str:
    """The last part of a dotted name; empty for anything else."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
