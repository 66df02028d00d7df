"""``manage.py jobs crashtest``: does a task survive being killed anywhere?"""

import json
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from jobs.contrib.console.base import PROVE, JobsCommand, option, project_app, reported, subcommand
from jobs.contrib.operations.selection import full_name


@subcommand(
    option("task", "the name of a task, or its last part", metavar="TASK"),
    option("arguments", "its arguments, each as JSON, or as text", nargs="*", metavar="ARG"),
    option("--kwargs", "its keyword arguments, as a JSON object", default="{}"),
    option("--beside", "the arguments of the other one of two at once, as a JSON list (default: the same)"),
    option("--budget", "so many ways of two at once (default: %(default)s)", type=int, default=40),
    option("--seconds", "at the most, for two at once (default: %(default)s)", type=float, default=10.0),
    option("--html", "write a report to this file, with the run as a time line", metavar="FILE"),
    option("--allow-http", "let its HTTP requests through, as often as it is run", action="store_true"),
    wish=PROVE,
)
def crashtest(out: JobsCommand, args: Namespace) -> None:
    """Kill a run of a task at every point, let two runs meet, and say what is left undone or done twice.

    It works on a copy of the database: of the file on SQLite, else a database of its own, made with CREATE
    DATABASE ... TEMPLATE, for which nobody else may be connected to the original. The task runs dozens of
    times: no mail leaves (Django's go to memory), its HTTP requests and other connections to mail servers are
    refused, caches begin empty, and calls of stock tasks are only noted. --allow-http lets HTTP requests
    through, each as often as the task is run: use it with a provider's test account. What else the task does
    outside of the database (files, sockets, other clients) is done for real. With a finding it exits with 1.

    examples:
      manage.py jobs crashtest shop.tasks.send_welcome_email 1
      manage.py jobs crashtest charge_order 1 --allow-http --html report.html
    """
    # Imported late: it imports django.test, which no other command needs.
    from jobs.contrib.crashtest import crash
    from jobs.contrib.crashtest.report import as_html

    app = project_app()
    with reported(TypeError, ValueError, RuntimeError, code=2):
        task = app.tasks.get(full_name(args.task))
        if task is None:
            raise ValueError(f"no task of this project is called {args.task!r}")
        kwargs, beside = json.loads(args.kwargs), args.beside and json.loads(args.beside)
        given: dict[str, Any] = {"beside": beside, "budget": (args.budget, args.seconds)}
        found = crash.examine(
            task, [_value(each) for each in args.arguments], kwargs, is_sealed=not args.allow_http, **given
        )
    if args.html:
        Path(args.html).write_text(as_html(found))
    out.say_json({"is_idempotent": not found.findings, **asdict(found)})
    out.say(str(found), keep="\n")
    if found.findings:
        raise CommandError(f"{len(found.findings)} found.")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
