"""``manage.py jobs audit``: what changes in a project of stock Celery when its ``task_cls`` becomes ours."""

from __future__ import annotations

import ast
import inspect
import os
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from celery import Celery
from django.apps import apps
from django.conf import settings
from django.core.management.base import CommandError
from kombu.common import Broadcast

from jobs import checks
from jobs.arguments import normalize
from jobs.calling.options import OF_A_CALL, check_call, check_declaration
from jobs.conf import conf, problems
from jobs.management.console.base import JobsCommand, option, project_app, reported, subcommand
from jobs.management.console.values import Values
from jobs.models.values import parse_uuid

#: What a finding means: it breaks after the switch, differs from before, or is not needed any more.
BREAKS, DIFFERS, NEEDLESS = "breaks", "differs", "needless"

#: What ``audit`` cannot see. It is said, so that nobody trusts it for that.
BLIND = (
    "Not seen: values that come from other functions, calls by name, code that is not in this project, what templates "
    "and signals do, and how long a body takes (a long one, or one that waits for the network, is better off with "
    "atomic=False)."
)

#: Installed apps about which docs/reference/compatibility.md says more.
PACKAGES = {
    "django_celery_results": "writes a result after the commit of its job, where it may be lost: jobs.backend reads "
    "the rows, and celery_settings() sets it",
    "django_celery_beat": "workers run its tables; beat is not needed, and doubles nothing beside them",
    "health_check": "its ping asks by the broker, and fails while that is away and jobs go on; jobs/health does not",
}

#: Options of a task that do nothing any more.
MEANINGLESS = ("acks_late", "reject_on_worker_lost", "acks_on_failure_or_timeout")

#: Calls in a body that would end its own transaction, and why they break.
CLOSING = {
    name: f"{name}() in the body ends the transaction that the body and its job share"
    for name in ("close_old_connections", "connection.close", "connections.close_all")
} | {
    name: f"{name}() is refused in the transaction that the body and its job share"
    for name in ("transaction.commit", "transaction.rollback", "transaction.set_autocommit")
}


class Remark(NamedTuple):
    """A finding: the place, what it means, a sentence and the cure."""

    where: str
    kind: str
    says: str
    cure: str


@subcommand(option("--strict", "exit with 1 if something breaks", action="store_true"), is_checked=False)
def audit(out: JobsCommand, args: Namespace) -> None:
    """Say what changes for the tasks that there are, before task_cls is switched.

    It reads the settings, the registered tasks, Celery's schedule and the project's own source. Nothing is run, and no
    database is asked. Each finding has its place and a cure. What "breaks" raises or fails after the switch; what
    "differs" works, but not as before; what is "needless" may be removed.

    examples:
      manage.py jobs audit
      manage.py jobs audit --strict
      manage.py jobs audit --json
    """
    with reported(TypeError, says="the project's tasks cannot be imported: {}"):
        app = project_app()
    found = [*_settings(app), *_packages(app), *_beat(app)]
    tasks = [task for name, task in sorted(app.tasks.items()) if _is_meant(name, task)]
    for task in tasks:
        found += _task(task)
    files = sorted(set(_sources()))
    for path in files:
        found += _source(path)
    count = Counter(each.kind for each in found)
    for each in found:
        style = {BREAKS: out.style.ERROR, DIFFERS: out.style.WARNING}.get(each.kind, out.style.SUCCESS)
        out.say(f"{style(f'{each.kind:8}')} {each.where}: {each.says}")
        out.say(f"         -> {each.cure}")
    kinds = ", ".join(f"{count[kind]} {kind}" for kind in (BREAKS, DIFFERS, NEEDLESS))
    out.say(f"Files read: {len(files)}. Tasks: {len(tasks)}. Findings: {kinds}.")
    out.say(BLIND)
    out.say_json({"findings": [each._asdict() for each in found], "tasks": len(tasks), "files": len(files)})
    if args.strict and count[BREAKS]:
        raise CommandError(f"{count[BREAKS]} findings break.")


# The settings


def _settings(app: Celery) -> Iterator[Remark]:
    silenced = ("jobs.W001", "jobs.W016")
    for check in (checks.check_settings, checks.check_databases, checks.check_routing, checks.check_celery):
        for message in check():
            if message.id not in silenced and not message.is_silenced():
                kind = BREAKS if message.is_serious() else NEEDLESS if message.id == "jobs.W019" else DIFFERS
                yield Remark(f"settings ({message.id})", kind, message.msg, message.hint or "")
    if app.conf.task_serializer not in checks.JSON:
        cure = "Remove the setting; tasks that need it keep their own, with JOBS['EXCLUDE']."
        yield Remark("settings", BREAKS, f"task_serializer is {app.conf.task_serializer!r}: every call raises", cure)
    if not problems() and not app.conf.task_time_limit:
        says = "without task_time_limit a body that never ends holds its process, and its job stays running"
        yield Remark("settings", DIFFERS, says, "celery_settings() of jobs.conf sets it to half an hour.")
    for name, queue in (app.amqp.queues or {}).items():
        if isinstance(queue, Broadcast) or getattr(queue.exchange, "type", "") == "fanout":
            says = f"the queue {name!r} copies a message to many: a call that is routed to it raises"
            yield Remark("settings", BREAKS, says, "Name the tasks that use it in JOBS['EXCLUDE'].")


def _packages(app: Celery) -> Iterator[Remark]:
    for name, says in PACKAGES.items():
        if apps.is_installed(name):
            yield Remark(name, DIFFERS, says, "docs/reference/compatibility.md")
    # If tasks are transactional, the checks above have said it.
    for message in () if getattr(app.Task, "is_transactional", False) else checks.neglected():
        yield Remark(f"settings ({message.id})", BREAKS, message.msg, message.hint or "")


def _beat(app: Celery) -> Iterator[Remark]:
    for name, entry in (app.conf.beat_schedule or {}).items():
        where, task = f"beat_schedule[{name!r}]", str(entry.get("task"))
        if task not in app.tasks:
            says = f"no task {task!r} is registered: a message is sent at each tick that no worker knows"
            yield Remark(where, DIFFERS, says, "Remove the entry, or import the module of the task.")
        try:
            # ``catch_up`` is an option of the entry; all others are of the call.
            check_call({key: value for key, value in (entry.get("options") or {}).items() if key != "catch_up"})
            normalize(entry.get("args"), entry.get("kwargs"), conf().MAX_ARGS_BYTES)
        except (TypeError, ValueError) as exc:
            yield Remark(where, BREAKS, str(exc), "Change the entry.")


# The declarations of tasks


def _is_meant(name: str, task: Any) -> bool:
    own = type(task).__module__.partition(".")[0] == __name__.partition(".")[0]
    return not (name.startswith("celery.") or own or checks.is_excluded(name))


def _place(task: Any) -> str:
    try:
        function = inspect.unwrap(task.run)
        path, line = inspect.getsourcefile(function), inspect.getsourcelines(function)[1]
    except (TypeError, OSError):
        return str(task.name)
    return f"{os.path.relpath(path or '')}:{line} {task.name}"


def _task(task: Any) -> Iterator[Remark]:
    where, kind, conf = _place(task), type(task), task.app.conf
    try:
        check_declaration(kind, [name for name in vars(kind) if "_decorated" in vars(kind)])
    except TypeError as exc:
        yield Remark(where, BREAKS, str(exc), "The declaration raises when the module is imported.")
    if checks.has_foreign_base(task):
        cure = "Let it inherit from jobs.Task, or name the task in JOBS['EXCLUDE'] if that is what you want."
        made = int("__wrapped__" in vars(kind))
        base = next(each for each in kind.__mro__[made:] if not each.__module__.startswith("celery."))
        yield Remark(where, DIFFERS, f"it stays stock Celery, because its base class {base.__name__} is not ours", cure)
        return
    if task.serializer not in (*checks.JSON, conf.task_serializer):
        cure = "Remove the option, or name the task in JOBS['EXCLUDE']."
        yield Remark(where, BREAKS, f"serializer={task.serializer!r}: a job's arguments are JSON", cure)
    if task.rate_limit and not conf.worker_disable_rate_limits:
        cure = "Divide what you meant for each worker, or leave it: docs/howto/limits.md."
        says = f"rate_limit={task.rate_limit!r} will be a rate of all workers together, and not of each"
        yield Remark(where, DIFFERS, says, cure)
    # Celery sets attributes from its settings, and our class has its own: only what the task itself says counts.
    given = [name for name in MEANINGLESS if vars(kind).get(name) not in (None, conf.get(f"task_{name}"))]
    if given and not getattr(task, "is_transactional", False):
        cure = "Remove it: the commit of its completion acknowledges a job."
        yield Remark(where, NEEDLESS, f"{', '.join(given)} means nothing for a job", cure)


# The source


def _sources() -> Iterator[Path]:
    """The files of the project's own apps, and of the package with its settings."""
    package = find_spec(str(settings.SETTINGS_MODULE).partition(".")[0])
    roots = {Path(each.path) for each in apps.get_app_configs()}
    if package is not None and package.origin:
        roots.add(Path(package.origin).parent)
    for root in roots - {Path(__file__).parents[2]}:
        for path in root.rglob("*.py"):
            if not {"site-packages", "dist-packages", "migrations"} & set(path.parts):
                yield path


def _source(path: Path) -> Iterator[Remark]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    name = os.path.relpath(path)
    for task in (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and _is_task(each)):
        for call in _calls(task):
            yield from (Remark(f"{name}:{call.lineno}", *said) for said in _in_body(call))
    for call in _calls(tree):
        yield from (Remark(f"{name}:{call.lineno}", *said) for said in (*_on_commit(call), *_options(call)))
    values = Values({model.__name__ for model in apps.get_models()})
    values.visit(tree)
    yield from (Remark(f"{name}:{line}", BREAKS, says, cure) for line, says, cure in values.found)


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _is_task(node: ast.FunctionDef) -> bool:
    names = [ast.unparse(each.func if isinstance(each, ast.Call) else each) for each in node.decorator_list]
    return any(name.rpartition(".")[2] in ("task", "shared_task") for name in names)


Said = Iterator[tuple[str, str, str]]


def _in_body(node: ast.Call) -> Said:
    name = ast.unparse(node.func).removeprefix("django.").removeprefix("db.")
    if name in CLOSING:
        yield BREAKS, CLOSING[name], "Remove it, a worker cares for its connections; or declare the task atomic=False."
    if any(each.arg == "durable" and getattr(each.value, "value", None) is True for each in node.keywords):
        says = "atomic(durable=True) raises in a body, which is in a transaction"
        yield BREAKS, says, "Remove durable, or declare the task atomic=False."
    if name.rpartition(".")[2] == "on_commit" and not any(map(_enqueues, ast.walk(node))):
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
