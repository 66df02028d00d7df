"""``manage.py jobs init``: what an existing project needs, as a diff of its files."""

import ast
import os
import re
import sys
from argparse import Namespace
from difflib import unified_diff
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from django.conf import settings
from django.core.management.base import CommandError

from jobs.conf import celery_app, conf
from jobs.contrib.checks import system as checks
from jobs.contrib.console.base import JobsCommand, option, subcommand
from jobs.contrib.operator.project.inherited import Family
from jobs.contrib.operator.project.source import last_name

CELERY = """\
import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "{settings}")

app = Celery("{package}", task_cls="jobs.task:Task")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
"""
PACKAGE = """\
from {module} import {name} as celery_app

__all__ = ["celery_app"]
"""
SETTINGS = """\
# How jobs run. The CELERY_... settings of this project win.
from jobs.conf import celery_settings  # noqa: E402

globals().update(celery_settings({broker}, prefix="CELERY_") | globals())
"""
SQLITE = """\
# On SQLite one transaction writes at a time: the others wait.
DATABASES["{alias}"].setdefault("OPTIONS", {{}}).update(
    transaction_mode="IMMEDIATE", timeout=20, init_command="PRAGMA journal_mode=WAL"
)
"""
BROKER = r"^\s*CELERY_BROKER_URL\s*="
TASK_CLASS = 'task_cls="jobs.task:Task"'
BOM = "\ufeff"


def _read(path: Path) -> str:
    """The text as it is, with its ends of lines."""
    return path.read_bytes().decode()


class Plan:
    """The project's files as they would become, and notes about what a person has to do."""

    def __init__(self) -> None:
        self.texts: dict[Path, str] = {}
        self.notes: list[str] = []

    def text(self, path: Path) -> str:
        return self.texts.get(path) or (_read(path) if path.exists() else "")

    def append(self, path: Path, text: str) -> None:
        end = "\r\n" if "\r\n" in self.text(path) else "\n"
        before, text = self.text(path).rstrip("\r\n"), text.replace("\n", end)
        self.texts[path] = f"{before}{end}{end}{text}" if before else text

    def insert(self, path: Path, line: int, column: int, text: str) -> None:
        """Insert a text at a place as ``ast`` counts: lines from 1, which only a newline ends, and columns in bytes.

        ``SyntaxError``: the file would be no program any more; nothing is changed.
        """
        lines = re.split(r"(?<=\n)", self.text(path))
        row = lines[line - 1].encode()
        column += len(BOM.encode()) if row.startswith(BOM.encode()) else 0
        lines[line - 1] = (row[:column] + text.encode() + row[column:]).decode()
        ast.parse("".join(lines).removeprefix(BOM))
        self.texts[path] = "".join(lines)

    def diffs(self) -> dict[Path, str]:
        found = {}
        for path, text in self.texts.items():
            name = os.path.relpath(path)
            old, before = (_read(path), name) if path.exists() else ("", "/dev/null")
            found[path] = "".join(unified_diff(old.splitlines(True), text.splitlines(True), before, name))
        return found


class Made(NamedTuple):
    """The place where the project makes its Celery app."""

    path: Path
    module: str
    name: str
    call: ast.Call


@subcommand(
    option("--write", "write the files; without it they are only shown", action="store_true"),
    option("--broker", "the URL of the broker, if the project has none yet (default: %(default)s)", default="jobs://"),
    is_checked=False,
)
def init(out: JobsCommand, args: Namespace) -> None:
    """Show what an existing project needs for its jobs, as a diff, or write it.

    Settings, the Celery app with its task_cls, and the import of the app. It only adds, and what is there already it
    leaves alone, so it may run again. What it cannot do is said in words. Settings that inherit from each other (from
    .base import *) get it where all of them have it.

    examples:
      manage.py jobs init
      manage.py jobs init --write
      manage.py jobs init | patch -p0
    """
    module = str(settings.SETTINGS_MODULE)
    package = module.partition(".")[0]
    path, root = _file(module), _file(package)
    if path is None or root is None or root.name != "__init__.py":
        raise CommandError(
            f"The settings are {module!r}, a module that stands in no package, so that there is no place for the "
            "Celery app: add what docs/howto/install.md says by hand."
        )
    plan = Plan()
    made = _made(package)
    if made is None:
        plan.append(root.parent / "celery.py", CELERY.format(settings=module, package=package))
        made_in, name = f"{package}.celery", "app"
    else:
        made_in, name = made.module, made.name
        _give_class(plan, made)
    if celery_app() is None and made_in not in plan.text(root):
        text = PACKAGE.format(module=made_in, name=name)
        plan.append(root, text.partition("\n")[0] + "  # noqa: E402, F401\n" if plan.text(root).strip() else text)
    family = Family(module)
    _give_settings(plan, family, args.broker, made)
    if made is None and len(family.last) > 1:
        others = ", ".join(name for name in family.last if name != module)
        plan.notes.append(
            f"celery.py names {module}, as manage.py does. Where a worker needs other settings ({others}), set "
            "DJANGO_SETTINGS_MODULE there."
        )
    _tell(out, args, plan)


def _tell(out: JobsCommand, args: Namespace, plan: Plan) -> None:
    diffs = plan.diffs()
    if args.write:
        for path in diffs:
            path.write_text(plan.texts[path], encoding="utf-8", newline="")
    out.say_json({"written": args.write, "files": {str(k): v for k, v in diffs.items()}, "notes": plan.notes})
    for path, diff in diffs.items():
        out.say(f"wrote {os.path.relpath(path)}" if args.write else diff.rstrip("\n"), keep="\n\t")
    for note in plan.notes:
        out.say(f"By hand: {note}")
    if not diffs:
        out.say("Nothing to add.")
    elif args.write:
        out.say("Next: manage.py check, manage.py migrate, celery -A PROJECT worker.")
    else:
        out.say("Nothing is written yet: manage.py jobs init --write")
    app = celery_app()
    if app is not None and not getattr(app.Task, "is_transactional", False):
        out.say("What changes for the tasks that there are: manage.py jobs audit")


def _file(module: str) -> Path | None:
    try:
        spec = find_spec(module)
    except (ModuleNotFoundError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None


def _made(package: str) -> Made | None:
    """Find where the loaded app is made, or else an app in the files where it usually is."""
    app = celery_app()
    modules = [] if app is None else list(sys.modules.items())
    names = [name for name, module in modules if any(each is app for each in getattr(module, "__dict__", {}).values())]
    for name in [*names, f"{package}.celery", f"{package}.celery_app"]:
        path = _file(name)
        if path is None or not path.exists():
            continue
        for node in ast.parse(path.read_bytes()).body:
            value = getattr(node, "value", None)
            if isinstance(node, ast.Assign) and isinstance(value, ast.Call) and last_name(value.func) == "Celery":
                return Made(path, name, ast.unparse(node.targets[0]), value)
    return None


def _keyword(call: ast.Call, name: str) -> Any:
    return next((each.value for each in call.keywords if each.arg == name), None)


def _give_class(plan: Plan, made: Made) -> None:
    given, app = _keyword(made.call, "task_cls"), celery_app()
    if given is None:
        arguments: list[Any] = [*made.call.args, *made.call.keywords]
        try:
            if arguments:
                line, column = max((each.end_lineno, each.end_col_offset) for each in arguments)
                plan.insert(made.path, line, column, f", {TASK_CLASS}")
            else:
                plan.insert(made.path, made.call.end_lineno or 0, (made.call.end_col_offset or 0) - 1, TASK_CLASS)
        except SyntaxError:
            # Its last argument stands in parentheses, say.
            plan.notes.append(f"{made.path}:{made.call.lineno} makes the app: give it {TASK_CLASS}.")
    elif "jobs.task:Task" not in ast.unparse(given) and not (app and getattr(app.Task, "is_transactional", False)):
        plan.notes.append(
            f"{made.path}:{given.lineno} gives the app a task_cls of its own, {ast.unparse(given)}: let that class "
            "inherit from jobs.Task."
        )


def _give_settings(plan: Plan, family: Family, broker: str, made: Made | None) -> None:
    if made is not None and _namespace(made) != "CELERY":
        plan.notes.append(
            f"{made.path} does not read its settings with config_from_object('django.conf:settings', "
            "namespace='CELERY'): write app.conf.update(celery_settings(BROKER_URL)) above what configures the app "
            "(from jobs.conf import celery_settings)."
        )
    else:
        for module in _lacking(family):
            is_named = family.finds(BROKER, module) or (
                module == family.module and getattr(settings, "CELERY_BROKER_URL", None)
            )
            text = SETTINGS.format(broker="CELERY_BROKER_URL" if is_named else f'"{broker}"')
            plan.append(family.paths[module], text)
    for module in family.last:
        if not family.finds(r"""["']jobs(\.apps\.\w+)?["']""", module) and module != family.module:
            plan.notes.append(f'{family.paths[module]} has no "jobs" in its INSTALLED_APPS.')
    for message in checks.check_databases():
        if message.id == "jobs.E002":
            alias = next(alias for alias in conf().DATABASES if repr(alias) in message.msg)
            place = family.finds(r"^\s*DATABASES\s*=", family.module) or family.module
            plan.append(family.paths[place], SQLITE.format(alias=alias))


def _lacking(family: Family) -> list[str]:
    """The settings that ``celery_settings`` has to be added to, so that all settings that processes name have them."""
    lacking = [name for name in family.last if not family.finds(r"celery_settings\(", name)]
    # Only ``celery_settings`` sets this one: the call may be in a place that the search of the text does not find.
    if hasattr(settings, "CELERY_BROKER_CHANNEL_ERROR_RETRY") and family.module in lacking:
        lacking.remove(family.module)
    if lacking != family.last or family.base is None:
        return lacking
    # Settings that depend on the broker are computed where the broker is named.
    above = {*family.chain(family.base)}
    is_below = any(family.finds(BROKER, name) not in {None, *above} for name in family.last)
    return lacking if is_below else [family.base]


def _namespace(made: Made) -> str | None:
    """The prefix of the app's settings among Django's; None if it does not read them."""
    calls = (node for node in ast.walk(ast.parse(made.path.read_bytes())) if isinstance(node, ast.Call))
    for call in calls:
        if last_name(call.func) == "config_from_object" and "'django.conf:settings'" in map(ast.unparse, call.args[:1]):
            return str(getattr(_keyword(call, "namespace"), "value", None))
    return None
