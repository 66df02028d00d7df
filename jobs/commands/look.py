"""``manage.py jobs list|show|nodes``."""

from __future__ import annotations

import datetime
import heapq
import uuid
from typing import Any

from django.core.management.base import CommandError
from django.utils import timezone

from jobs import census
from jobs.commands.base import AS_JSON, Subcommand, option
from jobs.commands.change import WHICH, which
from jobs.commands.status import nodes_table
from jobs.commands.text import table
from jobs.conf import conf
from jobs.models import Action, Job, Node
from jobs.redaction import Shown
from jobs.selection import find


class List(Subcommand):
    name = "list"
    summary = "list jobs, the newest first"
    options = (
        *WHICH,
        option("--limit", type=int, default=20, help="how many at the most (default: %(default)s)"),
        AS_JSON,
    )
    examples = ("list --state failed --since 2h", "list --task 'shop.*' --limit 100 --json")

    def run(
        self,
        *,
        state: str | None,
        limit: int,
        as_json: bool,
        **options: Any,
    ) -> None:
        if limit < 1:
            raise CommandError("--limit has to be 1 or more.")
        selection = which(options, [state] if state else ())
        newest = [selection.rows(alias).order_by("-pk")[: limit + 1] for alias in conf().DATABASES]
        rows = list(heapq.merge(*newest, key=lambda job: job.pk, reverse=True))
        if as_json:
            self.say_json([as_dict(job) for job in rows[:limit]])
            return
        if not rows:
            self.say("There is no such job.")
            return
        lines = [["id", "state", "task", "queue", "created", "attempts", "error"]]
        for job in rows[:limit]:
            shape = job.error if isinstance(job.error, dict) else {"type": "?", "message": job.error}
            error = f"{shape.get('type')}: {shape.get('message')} ".splitlines()[0][:60].strip() if job.error else ""
            lines.append([str(job.pk), job.state, job.task, job.queue, local(job.created_at), str(job.lease), error])
        self.say(table(lines, self.is_terminal))
        if len(rows) > limit:
            self.say(f"and more: --limit {2 * limit}")


class Show(Subcommand):
    name = "show"
    summary = "all that is known of one job: arguments, times, counts, result and errors"
    options = (option("id", metavar="ID", help="the id of a job (a UUID)"), AS_JSON)
    examples = ("show 6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11", "show --json ID")

    def run(self, *, id: str, as_json: bool, **options: Any) -> None:
        job = named(id)
        found = as_dict(job, whole=True)
        if as_json:
            self.say_json(found)
            return
        errors, last = found.pop("errors"), found.pop("error")
        if last is not None and last not in errors[-1:]:
            errors = [*errors, last]
        width = max(map(len, found))
        for name, value in found.items():
            if value not in (None, ""):
                self.say(f"{name.ljust(width)}  {value}")
        for action in Action.objects.using(job._state.db).filter(job=job.pk).order_by("pk"):
            self.say(f"{local(action.at)} {action.what} by {action.by or '?'} {action.why}".rstrip())
        for entry in errors:
            if not isinstance(entry, dict):
                entry = {"message": entry}
            self.say(
                f"\n{self.style.WARNING(str(entry.get('type')))}, attempt {entry.get('attempt')}, {entry.get('at')}"
            )
            self.say(str(entry.get("traceback") or entry.get("message")).rstrip())


class Nodes(Subcommand):
    name = "nodes"
    summary = "the workers: their last beat, version, processes, running jobs and queues"
    more = "The exit status is 1 if none is alive."
    options = (AS_JSON,)
    examples = ("nodes", "nodes --json")

    def run(self, *, as_json: bool, **options: Any) -> None:
        nodes, _ = census.nodes(census.running_by_node())
        if as_json:
            self.say_json(nodes)
        elif nodes:
            self.say(nodes_table(nodes, self.is_terminal))
        if not any(node["takes_jobs"] for node in nodes):
            raise CommandError("No worker is alive: celery -A proj worker")


def named(text: str) -> Job:
    """
    Raises:
        CommandError: no UUID, or no such job.
    """
    try:
        key = uuid.UUID(text)
    except ValueError:
        raise CommandError(f"{text!r} is no valid UUID: give the job's id as delay() returned it.") from None
    job: Job | None = find(key)
    if job is None:
        raise CommandError(f"There is no job {key}; manage.py jobs why {key} says what that may mean.")
    return job


def as_dict(job: Job, whole: bool = False) -> dict[str, Any]:
    names = ["id", "task", "queue", "priority", "state", "run_at", "expires_at", "lease", "retries", "crashes"]
    names += ["node_losses", "snoozes", "created_at", "started_at", "finished_at", "parent_id"]
    names += ["root_id", "marker_key", "replay_of", "unique_key", "error"]
    found = {name: _plain(getattr(job, name)) for name in names}
    if whole:
        seen = Shown(job)
        found |= {"args": seen.args, "kwargs": seen.kwargs, "result": seen.result, "errors": job.errors}
    node = Node.objects.using(job._state.db).filter(pk=job.node_id).first() if whole and job.node_id else None
    return {**found, "node": str(node) if node else job.node_id and str(job.node_id), "database": job._state.db}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    return str(value) if isinstance(value, uuid.UUID) else value


def local(at: datetime.datetime) -> str:
    return f"{timezone.localtime(at) if timezone.is_aware(at) else at:%Y-%m-%d %H:%M:%S}"
