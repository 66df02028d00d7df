"""What a call passes, as far as the source tells: model instances, querysets and sets, which no job can carry."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import suppress

#: Methods of a manager that answer with a row; with a row and more; with rows.
ONE = set("get create first last latest earliest aget acreate afirst alast alatest aearliest".split())
PAIR = set("get_or_create update_or_create aget_or_create aupdate_or_create".split())
MANY = set(
    "all filter exclude order_by values values_list select_related prefetch_related annotate distinct only defer using "
    "none select_for_update".split()
)
MANAGERS = ("objects", "_default_manager", "_base_manager")

CURES = {
    "instance": "Pass its primary key (.pk), and read the row again in the task.",
    "queryset": "Pass a list of primary keys.",
    "set": "Pass a sorted list.",
}

#: A method that takes the task's arguments as its own; and one that takes them as args and kwargs.
DIRECT = ("delay", "delay_on_commit", "adelay", "s", "si")
WRAPPED = ("apply_async", "apply_async_on_commit", "aapply_async")


class Values(ast.NodeVisitor):
    """Finds the calls of a file. Afterwards ``found`` has line, sentence and cure of each."""

    def __init__(self, models: set[str]) -> None:
        self.models = models
        self.known: dict[str, str] = {}
        self.model: str | None = None
        self.found: list[tuple[int, str, str]] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.model, before = node.name if node.name in self.models else None, self.model
        self.generic_visit(node)
        self.model = before

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        before = dict(self.known)
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        names = [each.arg for each in given]
        is_task = any("task" in ast.unparse(each) for each in node.decorator_list)
        for each in given:
            self.known.pop(each.arg, None)
            if each.annotation is not None and self._names_model(each.annotation):
                self.known[each.arg] = "instance"
                if is_task:
                    says = f"the task {node.name} takes a model instance, {ast.unparse(each)}"
                    self.found.append((each.lineno, says, CURES["instance"]))
        # A receiver of a model's signal, and a method of a model.
        if "sender" in names and "instance" in names:
            self.known["instance"] = "instance"
        if self.model and names[:1] == ["self"]:
            self.known["self"] = "instance"
        self.generic_visit(node)
        self.known = before

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._note(target.id, self._kind(node.value))
            elif isinstance(target, ast.Tuple):
                for number, each in enumerate(target.elts):
                    if isinstance(each, ast.Name):
                        is_row = number == 0 and self._method(node.value) in PAIR
                        self._note(each.id, "instance" if is_row else None)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        if isinstance(node.target, ast.Name):
            # Of values() and values_list() the items are plain.
            is_plain = any(isinstance(each, ast.Attribute) and "values" in each.attr for each in ast.walk(node.iter))
            is_rows = self._kind(node.iter) == "queryset" and not is_plain
            self._note(node.target.id, "instance" if is_rows else None)
        self.generic_visit(node)

    visit_AsyncFor = visit_For

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Attribute):
            return
        if node.func.attr in DIRECT:
            passed = [*node.args, *(each.value for each in node.keywords)]
        elif node.func.attr in WRAPPED:
            passed = [*node.args[:2], *(each.value for each in node.keywords if each.arg in ("args", "kwargs"))]
        else:
            return
        for each in passed:
            for value, kind in self._within(each):
                what = {"instance": "a model instance", "queryset": "a queryset", "set": "a set"}[kind]
                says = f"{ast.unparse(node.func)}() gets {ast.unparse(value)}, {what}: the call raises"
                self.found.append((node.lineno, says, CURES[kind]))

    def _within(self, node: ast.expr) -> Iterator[tuple[ast.expr, str]]:
        """The values that cannot be passed, also those in lists and dicts."""
        if kind := self._kind(node):
            yield node, kind
        elif isinstance(node, ast.List | ast.Tuple):
            for each in node.elts:
                yield from self._within(each)
        elif isinstance(node, ast.Dict):
            for each in node.values:
                yield from self._within(each)

    def _note(self, name: str, kind: str | None) -> None:
        self.known.pop(name, None)
        if kind is not None:
            self.known[name] = kind

    def _names_model(self, node: ast.expr) -> bool:
        """Of an annotation: ``User``, ``models.User``, ``"User"``, ``User | None``, ``Optional[User]``."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            with suppress(SyntaxError):
                return self._names_model(ast.parse(node.value, mode="eval").body)
            return False
        if isinstance(node, ast.BinOp):
            return self._names_model(node.left) or self._names_model(node.right)
        if isinstance(node, ast.Subscript):
            return ast.unparse(node.value).endswith("Optional") and self._names_model(node.slice)
        return last_name(node) in self.models

    def _method(self, node: ast.expr) -> str:
        """The last method of a chain that begins at a model's manager; empty for anything else."""
        node = node.value if isinstance(node, ast.Await) else node
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            return ""
        chain = [each.attr for each in ast.walk(node.func) if isinstance(each, ast.Attribute)]
        return node.func.attr if set(chain) & set(MANAGERS) else ""

    def _kind(self, node: ast.expr) -> str | None:
        """What no job can carry; None of what can be, or is not known."""
        node = node.value if isinstance(node, ast.Await) else node
        if isinstance(node, ast.Set | ast.SetComp):
            return "set"
        if isinstance(node, ast.Name):
            return self.known.get(node.id)
        if isinstance(node, ast.Attribute):
            return "instance" if ast.unparse(node) in ("request.user", "self.request.user") else None
        if isinstance(node, ast.Call):
            name = last_name(node.func)
            if name in self.models or name in ("get_object_or_404", "aget_object_or_404"):
                return "instance"
            method = self._method(node)
            return "instance" if method in ONE else "queryset" if method in MANY else "set" if name == "set" else None
        return None


def last_name(node: ast.expr) -> str:
    """The last part of a dotted name; empty for anything else."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
