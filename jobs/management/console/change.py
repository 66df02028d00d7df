"""``manage.py jobs retry|cancel|kill|run|move|prioritize|delete|pause|resume|limit|tell|adopt``: decisions."""

import time
import uuid
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable
from functools import partial
from inspect import getdoc
from typing import Any

from django.core.management.base import CommandError
from django.utils.translation import gettext

from jobs import extensions
from jobs.conf import conf, did_you_mean, loaded_app
from jobs.inspection import census
from jobs.lifecycle import queues
from jobs.management.console.base import DRY_RUN, ID, REASON, JobsCommand, Subcommand, me, option, reported, subcommand
from jobs.models import State
from jobs.operations import adoption, workers
from jobs.operations.actions import OPERATIONS, Operation, Outcome
from jobs.operations.selection import FIELDS, Selection, full_name, identify

WHICH = (
    option("--state", "all jobs in a state", choices=State.values),
    *(option(f"--{name}", field.help) for name, field in FIELDS.items()),
)

#: How many refusals are named one by one; and the seconds between two lines about the progress.
NAMED, PROGRESS = 20, 2.0


def which(args: Namespace, meant: tuple[str, ...] = ()) -> Selection:
    """The jobs that the options of :data:`WHICH` name; in the states that are ``meant`` if no state is named."""
    given = {name: value for name in FIELDS if (value := getattr(args, name)) is not None}
    for name, value in given.items():
        if not value.strip():
            # An unset variable of a script must not mean "all".
            raise CommandError(f"--{name} is empty: give it a value, or leave it out.")
    if args.contains is not None and conf().REDACT is not None:
        raise CommandError("--contains: the arguments are redacted (JOBS['REDACT']), and nobody may search in them.")
    with reported(says="--{}"):
        if args.task is not None:
            given["task"] = full_name(args.task.strip())
        return Selection.of(given, (args.state,) if args.state else meant)


def key_of(text: str) -> uuid.UUID:
    """The id of a job that was named on the command line."""
    try:
        return identify(text)
    except ValueError as exc:
        raise CommandError(f"{text!r} {exc}") from exc


def _change(operation: Operation, out: JobsCommand, args: Namespace) -> None:
    """Do the operation to each of the jobs that are named by id, or that fit the options."""
    with reported(says="--to: {}"):
        operation = operation.told(getattr(args, "to", ""), me(), args.why)
    if bool(args.ids) == any(getattr(args, name) is not None for name in ("state", *FIELDS)):
        raise CommandError(f"Say which jobs to {operation.name}: their ids, or what they have in common (--task, ...).")
    keys: Iterable[str] = dict.fromkeys(args.ids)
    total = len(args.ids)
    if not args.ids:
        selection = which(args, operation.meant)
        keys, total = (str(key) for key, _alias in selection), selection.count()
    said = time.monotonic()
    counts: Counter[bool] = Counter()
    refused: list[dict[str, str]] = []
    for number, text in enumerate(keys, 1):
        try:
            outcome = operation.attempt(identify(text), args.dry_run)
        except ValueError as exc:
            outcome = Outcome(False, str(exc))
        counts[outcome.is_done] += 1
        if args.as_json and not outcome.is_done:
            refused.append({"id": text, "why": outcome.says})
        if args.ids or (not outcome.is_done and counts[False] <= NAMED):
            style = out.style.SUCCESS if outcome.is_done else out.style.WARNING
            out.say(f"{text} {style(outcome.says)}")
        if not args.ids and time.monotonic() - said > PROGRESS:
            said = time.monotonic()
            out.warn(f"{number} of {max(total, number)}", out.style.NOTICE)
    out.say_json({"dry_run": args.dry_run, "done": counts[True], "refused": refused})
    values: dict[str, Any] = {"done": counts[True], "refused": counts[False], "participle": operation.participle}
    if not args.ids:
        would = gettext("%(done)s would be %(participle)s, %(refused)s refused")
        did = gettext("%(done)s %(participle)s, %(refused)s refused")
        out.say((would if args.dry_run else did) % values)
    if counts[False]:
        values |= {"number": counts[False], "total": counts.total()}
        would = gettext("%(number)s of %(total)s would not be %(participle)s.")
        could = gettext("%(number)s of %(total)s could not be %(participle)s.")
        raise CommandError((would if args.dry_run else could) % values)


def _subcommand(operation: Operation) -> Subcommand:
    options = [
        option("ids", ID[1]["help"], nargs="*", metavar="ID"),
        *WHICH,
        option("--why", "the reason, for the job's history", default=""),
        DRY_RUN,
    ]
    line = f"manage.py jobs {operation.name}"
    if operation.asks:
        options.append(option("--to", "what they get", required=True, metavar="VALUE"))
        line += f" --to {operation.example}"
    help = f"""{getdoc(operation)} The exit status is 1 if it could not be done to all of them.

examples:
  {line} 6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11
  {line} --task shop.tasks.send_welcome_email --state {operation.meant[0]} --since 2h --dry-run
"""
    return Subcommand(operation.name, help, options, partial(_change, operation))


retry, run, cancel, kill, move, prioritize, delete = map(_subcommand, OPERATIONS.values())


def warn_of_unknown(out: JobsCommand, names: Iterable[str]) -> None:
    """A warning and no error: the first job of a queue, and its worker, may come later."""
    app = loaded_app()
    known = {*census.gather(live=True)["queues"], *conf().QUEUES}
    known |= {name for had in extensions.through("known") for name in had("queue")}
    if app is not None:
        known |= {*app.amqp.queues, *filter(None, (getattr(each, "queue", None) for each in app.tasks.values()))}
    for name in names:
        if name not in known:
            text = f"Nobody knows a queue {name!r}: no worker, no job, no task, no setting{did_you_mean(name, known)}"
            out.warn(text, out.style.WARNING)


@subcommand(option("names", "the name of a queue", nargs="*", metavar="QUEUE"), REASON)
def pause(out: JobsCommand, args: Namespace) -> None:
    """Let the jobs of queues wait, for every worker at once, until they are resumed.

    What runs goes on. Jobs are enqueued as before, and expire as before. It survives restarts of everything.
    Without a queue: say which are paused.

    examples:
      manage.py jobs pause
      manage.py jobs pause mail --reason "the mail server is moved"
    """
    if args.names:
        warn_of_unknown(out, args.names)
    with reported():
        done = {name: queues.pause(name, me(), args.reason) for name in dict.fromkeys(args.names)}
    _say_switched(out, done, "paused", "was paused already")
    if not args.names:
        rows = queues.paused().values()
        for row in rows:
            out.say(f"{row.queue}: paused at {row.at:%Y-%m-%d %H:%M:%S} UTC by {row.by or '?'} {row.reason}".rstrip())
        if not rows:
            out.say("No queue is paused.")


@subcommand(option("names", "the name of a queue", nargs="+", metavar="QUEUE"))
def resume(out: JobsCommand, args: Namespace) -> None:
    """Let the jobs of paused queues run again.

    Workers that consume them go on within a second or so.

    examples:
      manage.py jobs resume mail
    """
    done = {name: queues.resume(name) for name in dict.fromkeys(args.names)}
    _say_switched(out, done, "resumed", "was not paused")


def _say_switched(out: JobsCommand, done: dict[str, bool], word: str, otherwise: str) -> None:
    for name, changed in done.items():
        out.say(f"{name}: {word}, {census.ready(name)} jobs are ready" if changed else f"{name}: {otherwise}")
    paused = {name: {"at": row.at, "by": row.by, "reason": row.reason} for name, row in queues.paused().items()}
    out.say_json({"changed": [name for name, changed in done.items() if changed], "paused": paused})


@subcommand(
    option("verb", "quiet, resume or stop", choices=[*workers.LABELS]),
    option("names", "a worker: its id, the first 8 digits of it, or its host", nargs="+", metavar="WORKER"),
    option("--why", "the reason, for the worker's log", default=""),
)
def tell(out: JobsCommand, args: Namespace) -> None:
    """Tell workers to be quiet, to claim jobs again, or to stop, on whatever machine they are.

    One that is quiet claims nothing more and finishes what it runs. One that stops does so as by SIGTERM: when what
    it runs has ended. They obey within a second or so. The exit status is 1 if one was not told.

    examples:
      manage.py jobs tell quiet 019aae3c --why "its disk is full"
      manage.py jobs tell resume 019aae3c
      manage.py jobs tell stop web-2
    """
    with reported(says="{}: manage.py jobs nodes"):
        nodes = [workers.find(name) for name in args.names]
    told = {str(node.pk): workers.tell(node.pk, args.verb, me(), args.why) for node in nodes}
    out.say_json({"verb": args.verb, "told": told})
    for node in nodes:
        if told[str(node.pk)]:
            out.say(f"{node}: {args.verb}")
    if dead := [str(node) for node in nodes if not told[str(node.pk)]]:
        raise CommandError(f"Not told, because dead by now: {', '.join(dead)}")


@subcommand(
    option("--cancel", "cancel all jobs that have not ended, before they can run here", action="store_true"),
    DRY_RUN,
)
def adopt(out: JobsCommand, args: Namespace) -> None:
    """Let workers run the jobs of a database that is a copy, or that was moved.

    Workers refuse a database that bears the mark of another one. This marks it as what it is, and says how many
    jobs run from now on. With --cancel they are cancelled first, those too that the original was running, and
    the messages of a jobs:// broker are deleted. A database that is marked as itself is left alone.

    examples:
      manage.py jobs adopt --dry-run
      manage.py jobs adopt --cancel
    """
    found = {alias: adoption.survey(alias) for alias in conf().DATABASES}
    others = [alias for alias, what in found.items() if what["marked_as"] != what["is"]]
    if args.cancel and not others:
        raise CommandError(
            "The database is marked as itself already: nothing was cancelled. If it is a copy nevertheless (of a "
            "disk: a snapshot), give it another JOBS['INSTANCE'] than its original has."
        )
    for alias, what in found.items():
        what |= {"cancelled": 0, "adopted": alias in others and not args.dry_run}
        if what["adopted"] and args.cancel:
            what["cancelled"] = done = adoption.cancel_all(alias)
            left = sum(adoption.survey(alias)["jobs"].values())
            if left:
                raise CommandError(
                    f"{done} jobs of {alias!r} were cancelled, {left} were not: somebody runs or records them at this "
                    "moment. The database was not adopted. Stop who works on it, and try again."
                )
        if what["adopted"]:
            adoption.adopt(alias)
    out.say_json(found)
    for alias, what in found.items():
        jobs = "{scheduled} scheduled, {ready} ready and {running} running jobs".format(**what["jobs"])
        if what.get("messages"):
            jobs += f" ({what['messages']} messages of the jobs:// broker)"
        if alias not in others:
            out.say(f"{alias}: is marked as itself already; {jobs} run here")
            continue
        was = f"was marked as {what['marked_as']!r}" if what["marked_as"] else "was not marked"
        ends = f"{'would be' if args.dry_run else 'were'} cancelled"
        then = ends if args.cancel else "would run here" if args.dry_run else "run here"
        out.say(f"{alias}: {was}, {'would be' if args.dry_run else 'is'} adopted as {what['is']!r}; {jobs} {then}")
