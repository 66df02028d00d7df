"""``manage.py jobs audit``: what changes in a project of stock Celery when its ``task_cls`` becomes ours."""

from __future__ import annotations

import inspect
import os
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from typing import Any

from celery import Celery
from django.apps import apps
from django.core.management.base import CommandError
from kombu.common import Broadcast

from jobs.conf import conf, problems, task_options
from jobs.contrib.checks import system as checks
from jobs.contrib.console.base import PROVE, JobsCommand, option, project_app, reported, subcommand
from jobs.contrib.operator import checks as project
from jobs.contrib.operator.project import source
from jobs.contrib.operator.project.source import BREAKS, DIFFERS, NEEDLESS, Finding
from jobs.contrib.typos.options import check_call, check_declaration
from jobs.models.values import normalize

#: What ``audit`` cannot see. It is printed, so that no reader relies on ``audit`` for it.
BLIND = (
    "Not seen: values that come from other functions, calls by name, code that is not in this project, what templates "
    "and signals do, and how long a body takes (a long one, or one that waits for the network, is better off with "
    "atomic=False)."
)

#: Installed apps that docs/reference/compatibility.md says more about.
PACKAGES = {
    "django_celery_results": "writes a result after the commit of its job, where it may be lost: jobs.backend reads "
    "the rows, and celery_settings() sets it",
    "django_celery_beat": "workers run its tables; beat is not needed, and doubles nothing beside them",
    "health_check": "its ping asks by the broker, and fails while that is away and jobs go on; jobs/health does not",
}

#: Options of a task that do nothing any more.
MEANINGLESS = ("acks_late", "reject_on_worker_lost", "acks_on_failure_or_timeout")


@subcommand(option("--strict", "exit with 1 if something breaks", action="store_true"), is_checked=False, wish=PROVE)
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
    files = sorted(set(source.files()))
    known = source.Known(
        frozenset(task.name.rpartition(".")[2] for task in tasks if _commits(task)),
        frozenset(app.amqp.queues or ()),
        source.durable(files),
    )
    for path in files:
        found += source.read(path, known)
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


def _settings(app: Celery) -> Iterator[Finding]:
    silenced = ("jobs.W001", "jobs.W016")
    for check in (checks.check_settings, checks.check_databases, checks.check_routing, checks.check_celery):
        for message in check():
            if message.id not in silenced and not message.is_silenced():
                kind = BREAKS if message.is_serious() else NEEDLESS if message.id == "jobs.W019" else DIFFERS
                yield Finding(f"settings ({message.id})", kind, message.msg, message.hint or "")
    if app.conf.task_serializer not in checks.JSON:
        cure = "Remove the setting; tasks that need it keep their own, with JOBS['EXCLUDE']."
        yield Finding("settings", BREAKS, f"task_serializer is {app.conf.task_serializer!r}: every call raises", cure)
    if not problems() and not app.conf.task_time_limit:
        says = "without task_time_limit a body that never ends holds its process, and its job stays running"
        yield Finding("settings", DIFFERS, says, "celery_settings() of jobs.conf sets it to half an hour.")
    for name, queue in (app.amqp.queues or {}).items():
        if isinstance(queue, Broadcast) or getattr(queue.exchange, "type", "") == "fanout":
            says = f"the queue {name!r} copies a message to many: a call that is routed to it raises"
            yield Finding("settings", BREAKS, says, "Name the tasks that use it in JOBS['EXCLUDE'].")


def _packages(app: Celery) -> Iterator[Finding]:
    for name, says in PACKAGES.items():
        if apps.is_installed(name):
            yield Finding(name, DIFFERS, says, "docs/reference/compatibility.md")
    # If tasks are transactional, the checks above have reported this.
    for message in () if getattr(app.Task, "is_transactional", False) else project.neglected():
        yield Finding(f"settings ({message.id})", BREAKS, message.msg, message.hint or "")


def _beat(app: Celery) -> Iterator[Finding]:
    for name, entry in (app.conf.beat_schedule or {}).items():
        where, task = f"beat_schedule[{name!r}]", str(entry.get("task"))
        if task not in app.tasks:
            says = f"no task {task!r} is registered: a message is sent at each tick that no worker knows"
            yield Finding(where, DIFFERS, says, "Remove the entry, or import the module of the task.")
        try:
            # ``catch_up`` is an option of the entry; all other options belong to the call.
            check_call({key: value for key, value in (entry.get("options") or {}).items() if key != "catch_up"})
            normalize(entry.get("args"), entry.get("kwargs"), conf().MAX_ARGS_BYTES)
        except (TypeError, ValueError) as exc:
            yield Finding(where, BREAKS, str(exc), "Change the entry.")


# The declarations of tasks


def _is_meant(name: str, task: Any) -> bool:
    own = type(task).__module__.partition(".")[0] == __name__.partition(".")[0]
    return not (name.startswith("celery.") or own or project.is_excluded(name))


def _commits(task: Any) -> bool:
    """Whether its body commits by itself."""
    options = {} if problems() else task_options(task.name)
    return options.get("atomic", getattr(task, "atomic", True)) is False


def _place(task: Any) -> str:
    try:
        function = inspect.unwrap(task.run)
        path, line = inspect.getsourcefile(function), inspect.getsourcelines(function)[1]
    except (TypeError, OSError):
        return str(task.name)
    return f"{os.path.relpath(path or '')}:{line} {task.name}"


def _task(task: Any) -> Iterator[Finding]:
    where, kind, conf = _place(task), type(task), task.app.conf
    # In a task of ours, extensions have turned options into attributes by now.
    declared = getattr(kind, "declared", None)
    try:
        check_declaration(
            kind, [name for name in vars(kind) if "_decorated" in vars(kind)] if declared is None else declared
        )
    except TypeError as exc:
        yield Finding(where, BREAKS, str(exc), "The declaration raises when the module is imported.")
    if project.has_foreign_base(task):
        cure = "Let it inherit from jobs.Task, or name the task in JOBS['EXCLUDE'] if that is what you want."
        made = int("__wrapped__" in vars(kind))
        base = next(each for each in kind.__mro__[made:] if not each.__module__.startswith("celery."))
        yield Finding(
            where, DIFFERS, f"it stays stock Celery, because its base class {base.__name__} is not ours", cure
        )
        return
    if task.serializer not in (*checks.JSON, conf.task_serializer):
        cure = "Remove the option, or name the task in JOBS['EXCLUDE']."
        yield Finding(where, BREAKS, f"serializer={task.serializer!r}: a job's arguments are JSON", cure)
    if task.rate_limit and not conf.worker_disable_rate_limits:
        cure = "Divide what you meant for each worker, or leave it: docs/howto/limits.md."
        says = f"rate_limit={task.rate_limit!r} will be a rate of all workers together, and not of each"
        yield Finding(where, DIFFERS, says, cure)
    # Celery sets attributes from its settings, and our class has its own: only what the task itself declares counts.
    given = [name for name in MEANINGLESS if vars(kind).get(name) not in (None, conf.get(f"task_{name}"))]
    if given and not getattr(task, "is_transactional", False):
        cure = "Remove it: the commit of its completion acknowledges a job."
        yield Finding(where, NEEDLESS, f"{', '.join(given)} means nothing for a job", cure)
