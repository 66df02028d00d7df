"""``manage.py jobs list|show``: what there is. Nothing is changed."""

import time
import uuid
from argparse import Namespace
from itertools import groupby
from typing import Any

from django.core.management.base import CommandError
from django.utils import timezone

from jobs.conf import conf
from jobs.contrib.console.base import ID, LIMIT, LOOK, JobsCommand, local, option, subcommand
from jobs.contrib.console.change import WHICH, key_of, which
from jobs.contrib.inspection import by_time
from jobs.contrib.inspection.view import errors_of, progress_of
from jobs.contrib.operations.selection import DIGITS
from jobs.contrib.redaction.display import shown, veil
from jobs.lifecycle.transitions import due_at
from jobs.models import ENDED, Action, Job, Node
from jobs.store import databases

WIDE = 140  #: From this many characters a line on, a list has whole ids and names.


@subcommand(*WHICH, LIMIT, wish=LOOK)
def list_(out: JobsCommand, args: Namespace) -> None:
    """List jobs, the newest first.

    examples:
      manage.py jobs list --state failed --since 2h
      manage.py jobs list --task 'shop.*' --limit 100 --json
    """
    if args.limit < 1:
        raise CommandError("--limit has to be 1 or more.")
    selection = which(args)
    every = [rows for alias in conf().DATABASES for rows in by_time.kinds(selection.rows(alias))]
    jobs = by_time.first(every, args.limit + 1)
    veil(jobs)
    out.say_json([as_dict(job) for job in jobs[: args.limit]])
    rows = []
    for job in jobs[: args.limit]:
        shape = job.error if isinstance(job.error, dict) else {"type": "?", "message": job.error}
        error = f"{shape.get('type')}: {shape.get('message')} ".splitlines()[0][:60].strip() if job.error else ""
        rows.append([str(job.pk), job.state, job.task, job.queue, local(job.created_at), str(job.lease), error])
    head = ["id", "state", "task", "queue", "created", "attempts", "error"]
    if out.width < WIDE:
        # The last digits identify a job as well.
        head = ["id", "state", "task", "created", "tries", "error"]
        today = local(timezone.now())[:10]
        rows = [
            [
                key[-DIGITS:], state, task.rpartition(".")[2],
                created[11:] if created.startswith(today) else created[5:16], tries, error,
            ]
            for key, state, task, _queue, created, tries, error in rows
        ]  # fmt: skip
    out.say_table(head, rows, "There is no such job.", fits=True)
    if len(jobs) > args.limit:
        out.say(f"and more: --limit {2 * args.limit}")


@subcommand(
    ID,
    option("--follow", "say how far it is, once a second, until it has ended; then show it", action="store_true"),
    wish=LOOK,
)
def show(out: JobsCommand, args: Namespace) -> None:
    """All that is known of one job: arguments, times, counts, progress, result and errors.

    examples:
      manage.py jobs show 6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11
      manage.py jobs show --follow ID
      manage.py jobs show --json ID
    """
    key = key_of(args.id)
    if args.follow:
        _follow(out, key)
    job: Job | None = databases.first(Job.objects.filter(pk=key))
    if job is None:
        raise CommandError(f"There is no job {key}; manage.py jobs why {key} says what that may mean.")
    using = job._state.db
    veil([job])
    seen = shown(job)
    found = as_dict(
        job, args=seen.args, kwargs=seen.kwargs, result=seen.result, errors=errors_of(job), cursor=seen.cursor
    )
    said = progress_of([job]).get(job.pk)
    found["progress"] = said and {**said._asdict(), "percent": said.percent}
    if job.node_id and (node := Node.objects.using(using).filter(pk=job.node_id).first()) is not None:
        found["node"] = str(node)
    out.say_json(found)
    found["run_at"] = due_at(job)
    errors, last, found["progress"] = found.pop("errors"), found.pop("error"), said
    if last is not None and last not in errors[-1:]:
        errors = [*errors, last]
    width = max(map(len, found))
    for name, value in found.items():
        if value not in (None, ""):
            out.say(f"{name.ljust(width)}  {value}")
    for action in Action.objects.using(using).filter(job=job.pk).order_by("pk"):
        out.say(f"{local(action.at)} {action.what} by {action.by or '?'} {action.why}".rstrip())
    entries = [entry if isinstance(entry, dict) else {"message": entry} for entry in errors]
    # Most attempts fail in the same way: equal errors are written once.
    for _, same in groupby(entries, lambda entry: [entry.get(name) for name in ("type", "message", "traceback")]):
        alike = [*same]
        entry, last = alike[0], alike[-1]
        out.say("")
        when = f"attempt {entry.get('attempt')}, {entry.get('at')}"
        if len(alike) > 1:
            when = f"{len(alike)} times alike: {when} to attempt {last.get('attempt')}, {last.get('at')}"
        out.say(f"{out.style.WARNING(str(entry.get('type')))}, {when}")
        out.say(str(entry.get("traceback") or entry.get("message")).rstrip(), keep="\n")


def _follow(out: JobsCommand, key: uuid.UUID) -> None:
    """Write a line for each change of the state or the progress."""
    line = None
    while (job := databases.first(Job.objects.filter(pk=key))) is not None:
        before, line = line, f"{job.state} {progress_of([job]).get(key) or ''}".rstrip()
        if line != before:
            out.say(line)
        if job.state in ENDED:
            return
        time.sleep(1.0)


def as_dict(job: Job, **more: Any) -> dict[str, Any]:
    names = "id task queue priority state run_at expires_at lease retries crashes node_losses snoozes created_at"
    names += " started_at finished_at parent_id root_id marker_key replay_of unique_key error"
    told = [field.attname for field in Job._meta.concrete_fields if getattr(field, "is_told", False)]
    found = {name: getattr(job, name) for name in [*names.split(), *told]}
    return found | more | {"node": job.node_id, "database": job._state.db}
