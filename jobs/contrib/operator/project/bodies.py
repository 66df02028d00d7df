"""Finds where source code relies on its own commits and messages, which work differently with jobs.

In a body of ours ``atomic()`` is a savepoint, and commits with the job. So a claim before a mail is not yet committed
when the mail is sent, and a status that is saved before a retry is rolled back with the attempt.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any, TypeGuard

#: The fields in which a statement contains other statements.
PARTS = ("body", "orelse", "handlers", "finalbody", "cases")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
#: Where a statement stands: the statement around it, the field there, and the place in it; the outermost first.
Path = tuple[tuple[ast.AST, str, int], ...]

#: Calls that write rows: ``save()`` with these arguments, and these methods at the end of a chain such as ``ROWS``.
OF_SAVE = {"update_fields", "using", "force_insert", "force_update"}
WRITES = set("create update delete bulk_create bulk_update get_or_create update_or_create".split())
ROWS = re.compile(r"\.(objects|_default_manager|_base_manager)\b|\.(filter|exclude|all)\(|_set\.")
#: Calls that send mail, and calls that ask another server.
MAIL = set("send_mail send_mass_mail mail_admins mail_managers send_messages".split())
MESSAGE = re.compile(r"\w*Email(Message|MultiAlternatives)?")
VERBS = set("get post put patch delete request head urlopen".split())
HTTP = re.compile(r"(requests|httpx)\.\w+|(.*\.)?urlopen")

#: Matches the name of a list that is a broker's queue.
QUEUE = re.compile(r"queue|celery|\bq\b", re.I)
BROKER = re.compile(r"broker_connection|default_channel|connection_for_(read|write)")


def last(node: ast.expr) -> str:
    """The last part of a dotted name; empty for anything else."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def leaving(tree: ast.AST) -> set[str]:
    """The names of a file's functions that send mail or ask another server, directly or through each other."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    found = {each.name for each in functions if any(_leaving([each], (), each))}
    calls = {each.name: {node.func.id for node in ast.walk(each) if _is_plain_call(node)} for each in functions}
    while found and (new := {name for name, called in calls.items() if name not in found and found & called}):
        found |= new
    return found


def claims(task: ast.FunctionDef, known: Collection[str]) -> Iterator[tuple[int, str]]:
    """Blocks of ``atomic()`` that write and are followed by mail or HTTP: the line of each, and what follows.

    Parameters:
        known: functions of the file with effects outside of the database (:func:`leaving`).
    """
    steps = list(_steps(task))
    for block, path in steps:
        is_inner = any(_is_atomic(owner) for owner, _, _ in path)
        if not _is_atomic(block) or is_inner or not any(map(_writes, ast.walk(block))):
            continue
        later = (call for each, at in steps if _follows(path, at) for call in _leaving(_own(each), known, task))
        if (call := next(later, None)) is not None:
            yield block.lineno, f"{ast.unparse(call.func)}() in line {call.lineno}"


def opens_durable(node: ast.AST) -> bool:
    """Whether it is a call such as ``atomic(durable=True)``: a value that is known only at run time counts as true."""
    if not isinstance(node, ast.Call) or last(node.func) != "atomic":
        return False
    given = (each.value for each in node.keywords if each.arg == "durable")
    return any(getattr(value, "value", True) is not False for value in given)


def durable(tree: ast.AST, others: Collection[str] = ()) -> set[str]:
    """The names of a file's functions that open a durable block, directly or through each other: ``Class.name`` for
    a method.

    Parameters:
        others: such functions of other files; they count where they are imported.
    """
    nodes = [*ast.walk(tree)]
    kinds = {method: f"{kind.name}." for kind in nodes if isinstance(kind, ast.ClassDef) for method in kind.body}
    functions = [(kinds.get(node, ""), node) for node in nodes if isinstance(node, ast.FunctionDef)]
    imported = {each.asname or each.name for node in nodes if isinstance(node, ast.ImportFrom) for each in node.names}
    found = {each for each in others if each.partition(".")[0] in imported}
    found |= {f"{prefix}{node.name}" for prefix, node in functions if any(map(opens_durable, ast.walk(node)))}
    while new := {f"{prefix}{node.name}" for prefix, node in functions if any(calls(node, found, prefix))} - found:
        found |= new
    return found


def calls(function: ast.AST, names: Collection[str], prefix: str = "") -> Iterator[ast.Call]:
    """The calls of such functions, and of such methods on objects that the function has made.

    Parameters:
        prefix: the name of the function's own class, with a dot.
    """
    made = {"self": prefix.rstrip(".")} | {
        target.id: last(node.value.func)
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and _is_plain_call(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(function):
        if _is_plain_call(node) and node.func.id in names:
            yield node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            kind = last(owner.func) if _is_plain_call(owner) else made.get(last(owner), "")
            if f"{kind}.{node.func.attr}" in names:
                yield node


def saved_before_retry(task: ast.FunctionDef) -> Iterator[int]:
    """The lines of calls of ``self.retry()`` that come after a write of a row in the same block."""
    for each, path in _steps(task):
        owner, part, place = path[-1]
        is_retry = any(
            isinstance(node, ast.Call) and ast.unparse(node.func) == "self.retry" for node in _walk(_own(each))
        )
        if is_retry and any(_writes(node) for node in _walk(getattr(owner, part)[:place])):
            yield each.lineno


def waits_for_commit(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    """Methods of task classes that postpone a call until the commit, and return None."""
    for kind in ast.walk(tree):
        if not isinstance(kind, ast.ClassDef) or not any("Task" in last(base) for base in kind.bases):
            continue
        for method in kind.body:
            if isinstance(method, ast.FunctionDef) and method.name in ("apply_async", "delay"):
                calls = [node for node in ast.walk(method) if isinstance(node, ast.Call)]
                if any(last(call.func) == "on_commit" for call in calls):
                    yield method


def lengths(tree: ast.AST, queues: Collection[str]) -> Iterator[int]:
    """The lines that ask a broker for the length of a queue: of a list in Redis, or by ``queue_declare()``.

    Parameters:
        queues: the names of the queues.
    """
    is_broker = BROKER.search(ast.unparse(tree)) is not None
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "message_count" and "queue_declare(" in ast.unparse(node):
            yield node.lineno
        if isinstance(node, ast.Call) and last(node.func) == "llen" and node.args:
            given = node.args[0]
            is_queue = given.value in queues if isinstance(given, ast.Constant) else QUEUE.search(ast.unparse(given))
            if is_queue or is_broker:
                yield node.lineno


def results(tree: ast.AST) -> Iterator[int]:
    """The lines where the code asks for a result by its id."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and last(node.func) == "AsyncResult":
            yield node.lineno


def _is_plain_call(node: ast.AST) -> TypeGuard[Any]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


# The order of statements


def _steps(owner: ast.AST, path: Path = ()) -> Iterator[tuple[Any, Path]]:
    """All statements of a function, except those of nested functions."""
    for part in PARTS:
        for place, each in enumerate(getattr(owner, part, ())):
            here = (*path, (owner, part, place))
            yield each, here
            if not isinstance(each, FUNCTIONS):
                yield from _steps(each, here)


def _follows(first: Path, second: Path) -> bool:
    """Whether one run can reach the second statement after it has executed the first one."""
    for level, (before, after) in enumerate(zip(first, second, strict=False)):
        if before == after:
            continue
        _, part, place = before
        _, other, later = after
        is_after = (
            place < later
            if part == other and part in ("body", "orelse", "finalbody")
            else (
                (part, other)
                in (("body", "orelse"), ("body", "finalbody"), ("handlers", "finalbody"), ("orelse", "finalbody"))
                and isinstance(before[0], ast.Try)
            )
        )
        return is_after and not any(_ends(getattr(owner, each)[at + 1 :]) for owner, each, at in first[level + 1 :])
    return False


def _ends(statements: Iterable[ast.AST]) -> bool:
    return any(isinstance(each, ast.Return | ast.Raise | ast.Continue | ast.Break) for each in statements)


def _own(statement: ast.AST) -> list[ast.AST]:
    """The expressions of a statement, without those of nested statements."""
    return [each for each in ast.iter_child_nodes(statement) if not isinstance(each, ast.stmt | ast.ExceptHandler)]


def _walk(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    return (node for each in nodes for node in ast.walk(each))


# What a call is


def _is_atomic(node: ast.AST) -> bool:
    return isinstance(node, ast.With) and any(
        isinstance(each.context_expr, ast.Call) and last(each.context_expr.func) == "atomic" for each in node.items
    )


def _writes(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr == "save":
        # The ``save()`` of a file or a picture takes a name or a path.
        return not node.args and {each.arg for each in node.keywords} <= OF_SAVE
    return node.func.attr in WRITES and ROWS.search(ast.unparse(node.func.value) + ".") is not None


def _leaving(nodes: Iterable[ast.AST], known: Collection[str], function: ast.AST) -> Iterator[ast.Call]:
    """The calls that send mail or ask another server."""
    for node in _walk(nodes):
        if not isinstance(node, ast.Call):
            continue
        name = last(node.func)
        is_sent = isinstance(node.func, ast.Attribute) and name == "send" and _is_message(node.func, function)
        is_http = name in VERBS and HTTP.fullmatch(ast.unparse(node.func))
        if name in MAIL or is_sent or is_http or (_is_plain_call(node) and name in known):
            yield node


def _is_message(send: ast.Attribute, function: ast.AST) -> bool:
    """Whether the ``send`` is that of a mail that was made in the function."""
    made = send.value
    if isinstance(made, ast.Name):
        values = [
            node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and [ast.unparse(each) for each in node.targets] == [made.id]
        ]
        return any(isinstance(value, ast.Call) and MESSAGE.fullmatch(last(value.func)) for value in values)
    return isinstance(made, ast.Call) and MESSAGE.fullmatch(last(made.func)) is not None
