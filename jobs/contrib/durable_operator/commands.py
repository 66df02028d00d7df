"""``manage.py jobs steps|signal``: what a durable task has done and waits for, and what lets it go on."""

import json
from argparse import Namespace
from collections import Counter
from typing import Any

from django.core.management.base import CommandError
from django.db import transaction

from jobs.conf import conf, did_you_mean
from jobs.contrib.console.base import ID, LIMIT, LOOK, MEND, JobsCommand, local, me, option, reported, subcommand
from jobs.contrib.console.change import key_of
from jobs.contrib.durable import history, signals, store
from jobs.contrib.durable.models import Step
from jobs.contrib.durable_operator import rows
from jobs.contrib.durable_operator.sending import send, taker
from jobs.contrib.inspection.times import duration
from jobs.contrib.inspection.view import look_up
from jobs.contrib.operations.given import parsed
from jobs.contrib.operations.notes import note
from jobs.contrib.redaction.display import shown
from jobs.models import ENDED, Job, State
from jobs.store import databases


@subcommand(ID, option("--rerun", "the name of a step that the next run does again", metavar="NAME"), wish=LOOK)
def steps(out: JobsCommand, args: Namespace) -> None:
    """List the steps of a durable task's job: what it has done, and what it waits for.

    --rerun forgets what one step has done: the next run does it again, and all other steps keep their results.
    A call that was answered to a step with effect=True is not made again: it is in the ledger (jobs effects).
    The exit status is 1 if there is no such job, or nothing was changed that should be.

    examples:
      manage.py jobs steps 6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11
      manage.py jobs steps --json ID
      manage.py jobs steps ID --rerun "charge the card"
    """
    key = key_of(args.id)
    job: Job | None = databases.first(Job.objects.filter(pk=key))
    if job is None:
        raise CommandError(f"There is no job {key}; manage.py jobs why {key} says what that may mean.")
    if args.rerun is not None:
        _rerun(out, job, args.rerun)
        return
    found = rows.steps(job, history.MOST)
    out.say_json(found)
    lines = []
    for each in found:
        children = Counter(child["state"] for child in each["children"])
        more = each["signal"] or ", ".join(f"{number} {state}" for state, number in children.items())
        if each["value"] is not None:
            more = json.dumps(each["value"], ensure_ascii=False, default=str)
        begun, took, failures = local(each["begun_at"]), duration(each["seconds"]), str(each["failures"] or "")
        until = local(each["until"]) if each["until"] else ""
        more = (each["fault"] or more)[:60]
        lines.append([each["name"], each["kind"], each["state"], begun, took, until, failures, more])
    head = ["step", "kind", "state", "begun", "took", "until", "failures", "result"]
    out.say_table(head, lines, f"{job} has no steps.")


def _rerun(out: JobsCommand, job: Job, name: str) -> None:
    using = str(job._state.db)
    if job.state == State.SUCCEEDED:
        raise CommandError(f"{job} has succeeded, and does not run again: call its task once more.")
    with transaction.atomic(using=using):
        if done := history.forget(job.pk, name, using):
            note(job.pk, using, "rerun", name, me(), "")
    if not done:
        known = list(Step.objects.using(using).filter(job=job.pk).values_list("name", flat=True))
        if name not in known:
            raise CommandError(f"{job} has no step {name!r}{did_you_mean(name, known)} (manage.py jobs steps {job.pk})")
        raise CommandError(f"{job} is running: wait for its end, or manage.py jobs cancel {job.pk}")
    view = look_up(job.pk)
    reason = view and next(iter(rows.waits(view)), None)
    follows = f"To run it: manage.py jobs retry {job.pk}" if job.state in ENDED else "A worker runs it"
    follows = reason.cure if reason else follows
    out.say_json({"id": job.pk, "rerun": name, "state": job.state, "next": follows})
    out.say(f"The next run of {job} does the step {name!r} again. {follows}")


@subcommand(
    option("key", "what the body waits for: self.wait_for(KEY)", nargs="?", metavar="KEY"),
    option("--payload", "what wait_for() returns (default: true)", default="true", metavar="JSON"),
    option(
        "--database", "of the job, if there are several (default: where one waits, else the first)", metavar="ALIAS"
    ),
    LIMIT,
    wish=MEND,
)
def signal(out: JobsCommand, args: Namespace) -> None:
    """Send a signal that a durable task waits for, and say which job takes it.

    One job takes it: the oldest that waits for it. If none does, it is kept for the first that will, for
    JOBS["RETENTION_SIGNALS"]. Without a key: list what jobs wait for, and the signals that nobody took.

    examples:
      manage.py jobs signal
      manage.py jobs signal approved:42
      manage.py jobs signal approved:42 --payload '{"by": "ada"}'
    """
    with reported():
        aliases = [databases.job_alias(args.database)] if args.database else list(conf().DATABASES)
    if args.key is None:
        _list(out, aliases, args.limit)
        return
    using = next((alias for alias in aliases if taker(args.key, alias) is not None), aliases[0])
    with reported(ValueError, says="Not sent, --payload is JSON (text too: '\"paid\"'): {}"):
        payload = parsed(args.payload)
    with reported(TypeError, ValueError, says="Not sent: {}"):
        job = send(args.key, payload, using, me())
    out.say_json({"key": args.key, "database": using, "job": job and job.pk})
    hint = did_you_mean(args.key, [key for alias in aliases for key in signals.waited_for(alias)])
    nobody = f"No job waits for {args.key!r} now{hint} It is kept for the first that will."
    out.say(f"Sent. {nobody if job is None else f'{job} goes on.'}")


def _list(out: JobsCommand, aliases: list[str], limit: int) -> None:
    if limit < 1:
        raise CommandError("--limit has to be 1 or more.")
    waits: list[dict[str, Any]] = []
    unwanted: list[dict[str, Any]] = []
    for alias in aliases:
        for job in store.awaiting_any(signals.SIGNAL, alias)[:limit]:
            key = shown(job).text("key", rows.key_of(job))
            waits.append({"key": key, "job": job.pk, "task": job.task, "since": job.started_at, "database": alias})
        found = list(signals.untaken(alias)[:limit])
        rows.veil(found)
        unwanted += [{"key": row.key, "payload": row.payload, "at": row.made_at, "database": alias} for row in found]
    out.say_json({"waiting": waits, "untaken": unwanted})
    lines = [[each["key"], str(each["job"]), each["task"], local(each["since"])] for each in waits]
    out.say_table(["waits for", "job", "task", "since"], lines, "No job waits for a signal.")
    lines = [[each["key"], json.dumps(each["payload"], default=str)[:60], local(each["at"])] for each in unwanted]
    out.say_table(["nobody took", "payload", "sent"], lines, "There is no signal that nobody took.")
