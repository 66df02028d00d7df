"""``manage.py jobs retry|cancel|run|move|prioritize|delete|pause|resume|effects``: what a person decides."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable
from functools import partial
from inspect import cleandoc
from typing import Any

from django.core.management.base import CommandError
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs import census, queues
from jobs import effects as ledger
from jobs.arguments import parse_uuid
from jobs.commands.base import AS_JSON, DRY_RUN, JobsCommand, Option, Subcommand, me, option, subcommand
from jobs.conf import conf
from jobs.models import State
from jobs.operations import CANCEL, DELETE, MOVE, PRIORITIZE, RETRY, RUN, By, Operation, Outcome
from jobs.selection import FIELDS, SEARCHED, Selection

WHICH = (
    option("--task", "all jobs of a task; NAME* for all names that begin so", metavar="NAME"),
    option("--queue", "all jobs of a queue", metavar="NAME"),
    option("--state", "all jobs in a state", choices=State.values),
    option(
        "--node",
        metavar="NAME",
        help="all jobs that a worker runs, or ran last: its id or the first 8 digits of it, or its host's name",
    ),
    option("--key", "all jobs of a unique key, or of a marker's", metavar="KEY"),
    option("--parent", "all jobs that were called by the body of this one", metavar="ID"),
    option("--error", "all jobs whose last error is of this class: SMTPException", metavar="CLASS"),
    option("--since", "only those created since then: 2h, 7d, 2026-11-21, '2026-11-21 14:30'", metavar="WHEN"),
    option("--until", "only those created before then", metavar="WHEN"),
    option("--contains", f"of the newest {SEARCHED:,}: with this text in their arguments", metavar="TEXT"),
)

#: How many of those that were refused are named one by one.
NAMED = 20

#: Seconds between two lines about how far it is.
PROGRESS = 2.0


def which(args: Namespace, meant: tuple[str, ...] = ()) -> Selection:
    """What the options of :data:`WHICH` say; of the states that are ``meant``, if none is named."""
    given = {name: getattr(args, name) for name in FIELDS}
    for name, value in given.items():
        if value is not None and not value.strip():
            # A variable of a script that is not set must not mean "all".
            raise CommandError(f"--{name} is empty: give it a value, or leave it out.")
    if args.contains is not None and conf().REDACT is not None:
        raise CommandError("--contains: the arguments are redacted (JOBS['REDACT']), and nobody may search in them.")
    try:
        return Selection.of(given, (args.state,) if args.state else meant)
    except ValueError as exc:
        raise CommandError(f"--{exc}") from exc


def _change(operation: Operation, out: JobsCommand, args: Namespace) -> None:
    """The operation, for each of the jobs that are named, or that fit."""
    try:
        operation = operation.told(getattr(args, "to", ""))
    except ValueError as exc:
        raise CommandError(f"--to: {exc}") from exc
    if bool(args.ids) == any(getattr(args, name) is not None for name in ("state", *FIELDS)):
        raise CommandError(f"Say which jobs to {operation.name}: their ids, or what they have in common (--task, ...).")
    keys: Iterable[str] = dict.fromkeys(args.ids)
    total = len(args.ids)
    if not args.ids:
        selection = which(args, operation.meant)
        keys, total = (str(key) for key, _alias in selection), selection.count()
    by, said = By(me(), args.why), time.monotonic()
    counts: Counter[bool] = Counter()
    refused: list[dict[str, str]] = []
    for number, text in enumerate(keys, 1):
        key = parse_uuid(text)
        outcome = Outcome(False, _("is no valid UUID")) if key is None else operation.attempt(key, by, args.dry_run)
        counts[outcome.is_done] += 1
        if args.as_json and not outcome.is_done:
            refused.append({"id": text, "why": outcome.says})
        if not args.as_json and (args.ids or (not outcome.is_done and counts[False] <= NAMED)):
            style = out.style.SUCCESS if outcome.is_done else out.style.WARNING
            out.say(f"{text} {style(outcome.says)}")
        if not args.ids and time.monotonic() - said > PROGRESS:
            said = time.monotonic()
            out.stderr.write(f"{number} of {max(total, number)}", out.style.NOTICE)
    values: dict[str, Any] = {"done": counts[True], "refused": counts[False], "participle": operation.participle}
    values |= {"number": counts[False], "total": counts.total()}
    if args.as_json:
        out.say_json({"dry_run": args.dry_run, "done": counts[True], "refused": refused})
    elif not args.ids:
        would = gettext("%(done)s would be %(participle)s, %(refused)s refused")
        did = gettext("%(done)s %(participle)s, %(refused)s refused")
        out.say((would if args.dry_run else did) % values)
    if counts[False]:
        would = gettext("%(number)s of %(total)s would not be %(participle)s.")
        could = gettext("%(number)s of %(total)s could not be %(participle)s.")
        raise CommandError((would if args.dry_run else could) % values)


def _of(operation: Operation, text: str, *more: Option) -> Subcommand:
    options = (
        option("ids", "the id of a job (a UUID)", nargs="*", metavar="ID"),
        *WHICH,
        option("--why", "the reason, for the job's history", default=""),
        DRY_RUN,
        AS_JSON,
        *more,
    )
    return Subcommand(operation.name, cleandoc(text), options, partial(_change, operation))


retry = _of(
    RETRY,
    """Run failed or cancelled jobs again.

    Retries and crashes are counted from zero again. Without --state only failed jobs are meant. The exit status
    is 1 if a job could not be retried.

    examples:
      manage.py jobs retry 6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11
      manage.py jobs retry --task shop.tasks.send_welcome_email --error SMTPConnectError --since 2h --dry-run
    """,
)
cancel = _of(
    CANCEL,
    """Cancel jobs that have not ended.

    A running job is asked to end: it does so at its next self.checkpoint(), or at its end, when all that it did
    in its transaction is rolled back. The exit status is 1 if a job could not be cancelled.

    examples:
      manage.py jobs cancel 6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11
      manage.py jobs cancel --queue mail --state scheduled --dry-run
    """,
)
run = _of(
    RUN,
    """Let jobs run now that wait for their time.

    A worker runs them as soon as it comes to them; nothing runs in this process. Jobs of a paused queue still
    wait for that. The exit status is 1 if a job does not wait.

    examples:
      manage.py jobs run 6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11
      manage.py jobs run --task shop.tasks.send_welcome_email --state scheduled
    """,
)
move = _of(
    MOVE,
    """Let waiting jobs go to another queue.

    A worker that consumes that queue runs them. The exit status is 1 if a job does not wait.

    examples:
      manage.py jobs move 6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11 --to mail
      manage.py jobs move --queue slow --to celery --dry-run
    """,
    option("--to", "where they go", required=True, metavar="QUEUE"),
)
prioritize = _of(
    PRIORITIZE,
    """Give waiting jobs another priority.

    The order is that of the project's broker: with RabbitMQ the highest number runs first, with Redis and
    without a broker the lowest. The exit status is 1 if a job does not wait.

    examples:
      manage.py jobs prioritize 6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11 --to 9
      manage.py jobs prioritize --task shop.tasks.send_welcome_email --to 0 --dry-run
    """,
    option("--to", "the priority, 0 to 255", required=True, metavar="NUMBER"),
)
delete = _of(
    DELETE,
    """Delete jobs that ended, with their history.

    For ever, and whatever their age; prune is for the old ones. Not those to whose result a marker points. The
    exit status is 1 if a job could not be deleted.

    examples:
      manage.py jobs delete 6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11
      manage.py jobs delete --task shop.tasks.send_welcome_email --state failed --dry-run
    """,
)


@subcommand(
    option("names", "the name of a queue", nargs="*", metavar="QUEUE"),
    option("--reason", "why, for those who ask", default=""),
    AS_JSON,
)
def pause(out: JobsCommand, args: Namespace) -> None:
    """Let the jobs of queues wait, for every worker at once, until they are resumed.

    What runs goes on. Jobs are enqueued as before, and expire as before. It survives restarts of everything.
    Without a queue: say which are paused.

    examples:
      manage.py jobs pause
      manage.py jobs pause mail --reason "the mail server is moved"
    """
    try:
        done = {name: queues.pause(name, me(), args.reason) for name in dict.fromkeys(args.names)}
    except ValueError as exc:
        raise CommandError(str(exc)) from exc
    _say_switched(out, done, "paused", "was paused already", args)
    if args.names or args.as_json:
        return
    rows = queues.paused().values()
    for row in rows:
        out.say(f"{row.queue}: paused at {row.at:%Y-%m-%d %H:%M:%S} UTC by {row.by or '?'} {row.reason}".rstrip())
    if not rows:
        out.say("No queue is paused.")


@subcommand(option("names", "the name of a queue", nargs="+", metavar="QUEUE"), AS_JSON)
def resume(out: JobsCommand, args: Namespace) -> None:
    """Let the jobs of paused queues run again.

    Workers that consume them go on within a second or so.

    examples:
      manage.py jobs resume mail
    """
    done = {name: queues.resume(name) for name in dict.fromkeys(args.names)}
    _say_switched(out, done, "resumed", "was not paused", args)


def _say_switched(out: JobsCommand, done: dict[str, bool], word: str, otherwise: str, args: Namespace) -> None:
    if args.as_json:
        rows = queues.paused()
        paused = {name: {"at": row.at.isoformat(), "by": row.by, "reason": row.reason} for name, row in rows.items()}
        out.say_json({"changed": [name for name, changed in done.items() if changed], "paused": paused})
        return
    for name, changed in done.items():
        out.say(f"{name}: {word}, {census.ready(name)} jobs are ready" if changed else f"{name}: {otherwise}")


@subcommand(
    option("id", "the number of one call, as listed", nargs="?", type=int, metavar="ID"),
    option("--happened", "it did: the next run of its job makes no call", action="store_true"),
    option("--answer", "what the next run gets as the provider's answer (with --happened)", metavar="JSON"),
    option("--not-happened", "it did not: the next run of its job makes the call", action="store_true"),
    option("--database", "of the call, if there are several (default: the first)", metavar="ALIAS"),
    AS_JSON,
)
def effects(out: JobsCommand, args: Namespace) -> None:
    """List the external calls of which nobody knows whether they happened, and say what you found.

    An ambiguous call waits for the next run of a job that makes it, which decides by the task's on_ambiguous=.
    A parked one waits for you: look at the provider for its key, say what you found, and retry the job. The
    exit status is 1 if nothing was changed that should be.

    examples:
      manage.py jobs effects
      manage.py jobs effects 17 --happened --answer '{"id": "ch_1"}'
      manage.py jobs effects 17 --not-happened
    """
    known = conf().DATABASES
    if args.database is not None and args.database not in known:
        raise CommandError(f"{args.database!r} is not one of JOBS['DATABASES'] ({', '.join(known)}).")
    if args.id is None:
        if args.happened or args.not_happened or args.answer is not None:
            raise CommandError("Say which call, by its number: manage.py jobs effects ID --happened.")
        _list_effects(out, [args.database] if args.database else list(known), args.as_json)
        return
    if args.happened == args.not_happened or (args.answer is not None and not args.happened):
        raise CommandError("Say one of the two: --happened (with --answer JSON), or --not-happened.")
    key, using = args.id, args.database or known[0]
    try:
        answer = None if args.answer is None else json.loads(args.answer)
        is_done = ledger.happened(key, using, answer) if args.happened else ledger.did_not_happen(key, using)
    except (TypeError, ValueError) as exc:
        raise CommandError(f"--answer cannot be kept as JSON: {exc}") from exc
    if not is_done:
        raise CommandError(f"{key} is no call that is ambiguous or parked (a run may be making it): nothing to say.")
    if args.as_json:
        out.say_json({"database": using, "id": key, "happened": args.happened})
    else:
        out.say(f"{key} {'happened' if args.happened else 'did not happen'}: retry its job, if that has ended")


def _list_effects(out: JobsCommand, aliases: list[str], as_json: bool) -> None:
    found = []
    for row in (row for alias in aliases for row in ledger.unsettled(alias).iterator()):
        using = row._state.db
        about = {"id": row.pk, "name": row.name, "key": row.key, "status": ledger.status(row), "calls": row.calls}
        found.append({"database": using, **about, "job": str(row.job), "created_at": row.created_at.isoformat()})
        if not as_json:
            where = f"{using}: " if len(conf().DATABASES) > 1 else ""
            out.say(f"{where}{row.pk} {row} {ledger.status(row)}, {row.calls} calls, job {row.job}")
    if as_json:
        out.say_json(found)
        return
    out.say(f"{len(found)} external calls are not settled.")
    if found:
        out.say("Look at the provider for the key, then: manage.py jobs effects ID --happened | --not-happened")
