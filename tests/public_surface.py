"""Every name that others may rely on, found in the code. ``public_surface.txt`` is what was promised.

``python -m tests.public_surface`` writes that file anew: for names that came, and for the few that left on purpose.
"""

from __future__ import annotations

import inspect
import os
import re
import runpy
from collections.abc import Iterable, Iterator
from dataclasses import fields
from itertools import chain
from pathlib import Path
from string import ascii_lowercase
from typing import Any

PROMISED = Path(__file__).with_suffix(".txt")
ROOT = PROMISED.parent.parent

#: The codes of `jobs why` have no table; each stands as a text in the code.
WHY = """
batch_ended batch_waits busy busy_workers calling cancelled child_failed due effect_parked ending expired failed
fair_turn given_back in_line in_order limit_reached lock_held next no_consumer no_key no_worker node_dead not_adopted
not_taken old_signature overdue postponed queue_paused rate_reached replaced replayed retry running schedule scheduled
sleeps snoozed step_retry succeeded taken_back unique_taken unknown unknown_task waits_for_children waits_for_signal
write_lock
""".split()

#: What a job's row says, also where it is computed by now.
JOB = """
args batch crashes created_at cursor error errors expires_at fair_key finished_at id kwargs lease node options
parent_id priority queue result retries root_id run_at started_at state task
""".split()


def surface() -> dict[str, set[str]]:
    """By kind, such as ``setting``: the names."""
    import pytest_jobs
    from jobs import conf, extensions, models, signals, testing, urls
    from jobs.contrib.checks.system import TEXTS
    from jobs.management.commands.jobs import Command

    docs = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    subcommands = Command.subcommands.values()
    folders = extensions.folders().values()
    places = (folder.glob("*.py") for folder in folders)
    why = "".join(path.read_text() for path in chain(*places))
    kinds: dict[str, Iterable[str]] = {
        "python": _python(),
        "task option": _first(docs["options"]()),
        "setting": (field.name for field in fields(conf.every())),
        "check": (f"jobs.{key}" for key in TEXTS),
        "signal": (name for name, kind in vars(signals).items() if isinstance(kind, signals.JobSignal)),
        "metric": _first(docs["metrics"]()),
        "command": (" ".join((each.name, flag)).rstrip() for each in subcommands for flag in _flags(each)),
        "why": (code for code in WHY if f'"{code}"' in why),
        "url": (f"jobs:{each.name} {each.pattern}" for each in urls.urlpatterns),
        "state": models.State.values,
        "permission": {
            f"{model._meta.app_label}.{codename}" for model in models.tables() for codename in _permissions(model)
        }
        & set(re.findall(r"`(jobs\w*\.\w+)`", (ROOT / "docs" / "reference" / "permissions.md").read_text())),
        "column of Job": (name for name in JOB if hasattr(models.Job, name)),
        "exception": _first(docs["errors"]()),
        "fixture": (name for name in testing.__all__ if hasattr(pytest_jobs, name)),
    }
    return {kind: set(names) for kind, names in kinds.items()}


def _python() -> Iterator[str]:
    import jobs
    from jobs import events, testing
    from jobs.models import Batch, Job

    for module in (jobs, events, testing):
        for name in module.__all__:
            yield f"{module.__name__}.{name}{_parameters(getattr(module, name))}"
    docs = "".join(page.read_text() for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")))
    for kind, path in ((jobs.Task, "jobs.Task"), (Job, "jobs.models.Job"), (Batch, "jobs.models.Batch")):
        columns = {field.name for field in kind._meta.get_fields()} if kind is not jobs.Task else set()
        for name, value in vars(kind).items():
            # Public is what the docs name.
            if name[0] in ascii_lowercase and name not in columns and re.search(rf"`[^`\n]*\.{name}\b", docs):
                yield f"{path}.{name}{_parameters(value)}"


def _parameters(value: Any) -> str:
    value = getattr(value, "__func__", value)
    if not inspect.isfunction(value) and not (inspect.isclass(value) and "__init__" in vars(value)):
        return ""
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    parameters = [each for each in inspect.signature(value).parameters.values() if each.name not in ("self", "cls")]
    return "({})".format(
        ", ".join(
            marks.get(each.kind, "") + each.name + ("=" if each.default is not inspect.Parameter.empty else "")
            for each in parameters
        )
    )


def _first(lines: list[str]) -> Iterator[str]:
    """The first column of a table of the docs, and the labels of a metric."""
    for line in lines[2:]:
        name, more = line.split("|")[1:3]
        labels = " ".join(re.findall(r"`(\w+)`", more)) if name.strip(" `").startswith(("jobs_", "celery_")) else ""
        yield f"{name.strip(' `')} {labels}".rstrip()


def _flags(subcommand: Any) -> list[str]:
    return ["", *(flag for flag, _ in subcommand.options)]


def _permissions(model: Any) -> Iterator[str]:
    yield from (f"{action}_{model._meta.model_name}" for action in model._meta.default_permissions)
    yield from (codename for codename, _ in model._meta.permissions)


def listed() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for line in PROMISED.read_text().splitlines():
        kind, _, name = line.partition(": ")
        found.setdefault(kind, set()).add(name)
    return found


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django

    django.setup()
    PROMISED.write_text("".join(f"{kind}: {name}\n" for kind, names in surface().items() for name in sorted(names)))
