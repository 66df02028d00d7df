"""Reads the source of a project: which files it has, and what in them a job cannot do or carry."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from django.apps import apps
from django.conf import settings

import jobs
from jobs.conf import conf, problems
from jobs.contrib.checks import system as checks
from jobs.contrib.operator.project import bodies
from jobs.contrib.operator.project.bodies import last as last_name
from jobs.contrib.typos.options import OF_A_CALL, check_call
from jobs.models.values import parse_uuid

#: What a finding means: it breaks after the switch, differs from before, or is not needed any more.
BREAKS, DIFFERS, NEEDLESS = "breaks", "differs", "needless"

#: Methods of a manager that return a row; a pair with a row; a queryset.
ONE = set("get create first last latest earliest aget acreate afirst alast alatest aearliest".split())
PAIR = set("get_or_create update_or_create aget_or_create aupdate_or_create".split())
MANY = set(
    "all filter exclude order_by values values_list select_related prefetch_related annotate distinct only defer using "
    "none select_for_update".split()
)
MANAGER = re.compile(r"\.(objects|_default_manager|_base_manager)\b")

#: The kinds of values that a job cannot carry: what each is, and the cure.
KINDS = {
    "instance": ("a model instance", "Pass its primary key (.pk), and read the row again in the task."),
    "queryset": ("a queryset", "Pass a list of primary keys."),
    "set": ("a set", "Pass a sorted list."),
}

#: Methods of a task that take its arguments directly; and methods that take them as args and kwargs.
DIRECT = ("delay", "delay_on_commit", "adelay", "s", "si")
WRAPPED = ("apply_async", "apply_async_on_commit", "aapply_async")

#: Calls in a body that would end its own transaction, and why they break.
CLOSING = {
    name: f"{name}() in the body ends the transaction that the body and its job share"
    for name in ("close_old_connections", "connection.close", "connections.close_all")
} | {
    name: f"{name}() is refused in the transaction that the body and its job share"
    for name in ("transaction.commit", "transaction.rollback", "transaction.set_autocommit")
}


#: The text about a method that postpones calls; and more findings about a file, with their cures.
WAITS = "waits for the commit and returns None: a job that is made after the commit can be lost before it is"
LENGTH = (
    "the length of a broker's list: no job is in it, so it says 0",
    "Job.objects.filter(queue=NAME, state='ready').count() of jobs.models.",
)
WAITED_FOR = (
    "code asks for a result: that of a task which says nothing of retries may come a day later, if what failed may "
    "pass",
    "Give the task max_retries=0, in its code or by JOBS['TASKS'], and it fails at once.",
)


#: The cure for what a body must not do in its transaction, to be formatted with the name of its task.
ALONE = "Set JOBS = {{'TASKS': {{'*.{}': {{'atomic': False}}}}}}: its blocks commit then as they do now."


class Finding(NamedTuple):
    """A finding: the place, what it means, a sentence and the cure."""

    where: str
    kind: str
    says: str
    cure: str


def files() -> Iterator[Path]:
    """The files of the project's own apps, and of the package with its settings."""
    package = find_spec(str(settings.SETTINGS_MODULE).partition(".")[0])
    roots = {Path(each.path) for each in apps.get_app_configs()}
    if package is not None and package.origin:
        roots.add(Path(package.origin).parent)
    # An installed product can be the project: its package has the settings, or JOBS["APPS"] names it.
    own = [Path(each).resolve() for name in _packages() if (each := _home(name))]
    for root in roots - {Path(jobs.__file__).parent}:
        is_own = any(root.resolve().is_relative_to(each) for each in own)
        for path in root.rglob("*.py"):
            others = {"site-packages", "dist-packages"} & set(path.parts)
            # An editor's lock file is a link to nothing.
            if "migrations" not in path.parts and (is_own or not others) and path.is_file():
                yield path


def _packages() -> Iterator[str]:
    yield str(settings.SETTINGS_MODULE).partition(".")[0]
    yield from () if problems() else conf().APPS


def _home(name: str) -> Path | None:
    """The folder of a package."""
    try:
        found = find_spec(name)
    except (ImportError, ValueError):
        return None
    return (
        Path(found.origin).parent if found is not None and found.submodule_search_locations and found.origin else None
    )


class Known(NamedTuple):
    """Facts from the project's Celery app that help to read its source."""

    #: The last parts of the names of tasks whose bodies commit by themselves (``atomic=False``).
    own_commits: frozenset[str] = frozenset()
    queues: frozenset[str] = frozenset()
    #: Functions that open a block with ``atomic(durable=True)``.
    durable: frozenset[str] = frozenset()


def durable(paths: Iterable[Path]) -> frozenset[str]:
    """The names of functions in these files that open a durable block."""
    found: set[str] = set()
    for path in paths:
        if b"durable" in (text := path.read_bytes()) and (tree := _parsed(text)) is not None:
            found |= bodies.durable(tree)
    return frozenset(found)


def _parsed(text: bytes) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def read(path: Path, known: Known) -> Iterator[Finding]:
    text = path.read_bytes()
    if (tree := _parsed(text)) is None:
        return
    name = os.path.relpath(path)
    leaving = bodies.leaving(tree) if b"atomic" in text else set()
    tasks = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and _is_task(each)]
    durable = bodies.durable(tree, known.durable) if tasks else set()
    for task in tasks:
        for call in _calls(task):
            yield from (Finding(f"{name}:{call.lineno}", *said) for said in _on_commit_in_body(call))
        if task.name not in known.own_commits and not _says_atomic_false(task):
            # A name that the body assigns is something else: the connection of a mail, for example.
            own = {each.id for each in ast.walk(task) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
            for call in _calls(task):
                yield from (Finding(f"{name}:{call.lineno}", *said) for said in _in_transaction(call, own))
            for call in bodies.calls(task, durable):
                says = f"{ast.unparse(call.func)}() opens atomic(durable=True), which raises in a body's transaction"
                yield Finding(f"{name}:{call.lineno}", BREAKS, says, ALONE.format(task.name))
            yield from (Finding(f"{name}:{line}", *said) for line, *said in _commits(task, leaving))
    overrides = list(bodies.waits_for_commit(tree)) if b"on_commit" in text else []
    within = {call for method in overrides for call in _calls(method)}
    for call in _calls(tree):
        said_of = _options(call) if call in within else (*_on_commit(call), *_options(call))
        yield from (Finding(f"{name}:{call.lineno}", *said) for said in said_of)
    for method in overrides:
        yield Finding(f"{name}:{method.lineno}", NEEDLESS, f"{method.name}() {WAITS}", "Remove it: calls are rows.")
    for line in bodies.lengths(tree, known.queues) if b"llen" in text or b"queue_declare" in text else ():
        yield Finding(f"{name}:{line}", DIFFERS, *LENGTH)
    if b"AsyncResult" in text and not problems() and getattr(conf(), "RETRY", None) is not None:
        yield from (Finding(f"{name}:{line}", DIFFERS, *WAITED_FOR) for line in bodies.results(tree))
    values = Values({model.__name__ for model in apps.get_models()})
    values.visit(tree)
    yield from (Finding(f"{name}:{line}", BREAKS, says, cure) for line, says, cure in values.found)


def _commits(task: ast.FunctionDef, leaving: set[str]) -> Iterator[tuple[int, str, str, str]]:
    """What a body commits before it goes on: in a job, that is only a savepoint of the job's transaction."""
    cure = ALONE.format(task.name)
    for line, what in bodies.claims(task, leaving):
        says = f"this block is committed with the job, and not before {what}: a process that dies there does both again"
        yield line, DIFFERS, says, cure
    for line in bodies.saved_before_retry(task):
        yield line, DIFFERS, "what is saved before self.retry() is rolled back with the attempt", cure


def _says_atomic_false(node: ast.FunctionDef) -> bool:
    options = [each for call in node.decorator_list if isinstance(call, ast.Call) for each in call.keywords]
    return any(each.arg == "atomic" and getattr(each.value, "value", None) is False for each in options)


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _is_task(node: ast.FunctionDef) -> bool:
    names = [ast.unparse(each.func if isinstance(each, ast.Call) else each) for each in node.decorator_list]
    return any(name.rpartition(".")[2] in ("task", "shared_task") for name in names)


Said = Iterator[tuple[str, str, str]]


def _in_transaction(node: ast.Call, own: set[str]) -> Said:
    """What a body with a transaction of its own must not do; ``own`` are the names that the body assigns."""
    name = ast.unparse(node.func).removeprefix("django.").removeprefix("db.")
    if name in CLOSING and name.partition(".")[0] not in own:
        yield BREAKS, CLOSING[name], "Remove it, a worker cares for its connections; or declare the task atomic=False."
    if bodies.opens_durable(node):
        says = "atomic(durable=True) raises in a body, which is in a transaction"
        yield BREAKS, says, "Remove durable, or declare the task atomic=False."


def _on_commit_in_body(node: ast.Call) -> Said:
    if last_name(node.func) == "on_commit" and not any(map(_enqueues, ast.walk(node))):
        says = "on_commit() in a body is lost if the process dies after the commit"
        yield DIFFERS, says, "Enqueue a job in its place."


def _enqueues(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in ("delay", "apply_async")


def _on_commit(node: ast.Call) -> Said:
    if ast.unparse(node.func).rpartition(".")[2] == "on_commit" and any(map(_enqueues, ast.walk(node))):
        says = "on_commit() around a call: the call is part of the transaction"
        yield NEEDLESS, says, "Call it directly; until then it works, and its job can be lost between the two commits."


def _options(node: ast.Call) -> Said:
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in ("apply_async", "apply_async_on_commit"):
        return
    given = {each.arg: each.value for each in node.keywords if each.arg}
    for name in given.keys() - OF_A_CALL - {"args", "kwargs"} - set(() if problems() else conf().TASK_OPTIONS):
        try:
            check_call({name: None})
        except TypeError as exc:
            yield BREAKS, str(exc), "Change the call."
    serializer = getattr(given.get("serializer"), "value", "json")
    if serializer not in checks.JSON:
        yield BREAKS, f"serializer={serializer!r}: a job's arguments are JSON", "Remove it, or JOBS['EXCLUDE']."
    key = given.get("task_id")
    is_text = isinstance(key, ast.Constant) and isinstance(key.value, str) and parse_uuid(key.value) is None
    if key is not None and (is_text or isinstance(key, ast.JoinedStr)):
        says = f"task_id={ast.unparse(key)} is no UUID, and a job's id is one"
        yield BREAKS, says, "Leave it out: for one waiting job per key there is unique=, for one run idempotency_key=."


class Values(ast.NodeVisitor):
    """Finds the calls of a file that pass such values: ``found`` has the line, a sentence and the cure for each."""

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
        decorators = [ast.unparse(each) for each in node.decorator_list]
        # A base class may read the row before it calls the body.
        if any("task" in each and "base=" not in each for each in decorators):
            positional = given[: -len(node.args.kwonlyargs) or None]
            required = positional[: len(positional) - len(node.args.defaults)]
            required += [
                each
                for each, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
                if default is None
            ]
            # An argument with a default may be meant for callers that run the body in their own process.
            for each in required:
                if known[each.arg]:
                    says = f"the task {node.name} takes a model instance, {ast.unparse(each)}"
                    self.found.append((each.lineno, says, KINDS["instance"][1]))
        if "sender" in known and "instance" in known:
            # The function is a receiver of a model's signal.
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
        """True for ``User``, ``"User"``, ``User | None`` and ``Optional[User]``, but not for ``int | User``."""
        text = "" if annotation is None else re.sub("['\"]", "", ast.unparse(annotation))
        text = re.sub(r"^(?:\w+\.)?Optional\[(.*)\]$", r"\1", text)
        parts = {part.strip().rpartition(".")[2] for part in text.split("|")} - {"None"}
        return bool(parts) and parts <= self.models

    def _method(self, node: ast.expr) -> str:
        """The last method of a chain that begins at a model's manager; empty for anything else."""
        node = node.value if isinstance(node, ast.Await) else node
        is_chain = isinstance(node, ast.Call) and MANAGER.search(ast.unparse(node.func))
        return last_name(node.func) if is_chain and isinstance(node, ast.Call) else ""

    def _kind(self, node: ast.expr) -> str | None:
        """One of :data:`KINDS`; None if a job can carry the value, and if the kind is not known."""
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
