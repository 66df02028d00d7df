"""``manage.py jobs retry|run|cancel|kill``, and other operations on jobs."""

import time
import uuid
from argparse import Action, Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from inspect import getdoc
from typing import Any

from django.core.management.base import CommandError
from django.utils.translation import gettext

from jobs.conf import conf, did_you_mean, loaded_app
from jobs.contrib.console.base import DRY_RUN, ID, MEND, JobsCommand, Subcommand, me, option, reported
from jobs.contrib.inspection import counts
from jobs.contrib.operations.actions import OPERATIONS, Operation, Outcome
from jobs.contrib.operations.selection import FIELDS, Selection, full_name, identify
from jobs.models import Job, State
from jobs.store import databases


class Once(Action):
    """An option of which only the last one would count: "these and those" must not mean only those."""

    def __call__(self, parser: Any, namespace: Namespace, values: Any, option_string: str | None = None) -> None:
        if getattr(namespace, self.dest, None) is not None:
            parser.error(f"{option_string} can be given once: run the command once for each.")
        setattr(namespace, self.dest, values)


WHICH = (
    option("--state", "all jobs in a state; may be given more than once", choices=State.values, action="append"),
    *(option(f"--{name}", field.help, action=Once) for name, field in FIELDS.items()),
)

#: How many refusals are listed one by one; and the seconds between two lines about the progress.
NAMED, PROGRESS = 20, 2.0


def which(args: Namespace, meant: tuple[str, ...] = ()) -> Selection:
    """The jobs that the options of :data:`WHICH` name; if no state is named, only jobs in the states ``meant``."""
    given = {name: value for name in FIELDS if (value := getattr(args, name)) is not None}
    for name, value in given.items():
        if not value.strip():
            # An unset variable of a script must not mean "all".
            raise CommandError(f"--{name} is empty: give it a value, or leave it out.")
    with reported(says="--{}"):
        if args.task is not None:
            given["task"] = full_name(args.task.strip())
        # On the command line it is a list; a caller of Django's ``call_command()`` may give one.
        states = (args.state,) if isinstance(args.state, str) else tuple(args.state or meant)
        return Selection.of(given, states)


def key_of(text: str) -> uuid.UUID:
    """The id of a job that was named on the command line."""
    try:
        return identify(text)
    except ValueError as exc:
        raise CommandError(f"{text!r} {exc}") from exc


def _each_once(ids: Sequence[str]) -> Iterator[str]:
    """Also if one is written in capitals, or by its last digits."""
    known = set()
    for text in ids:
        key: Any = text
        with suppress(ValueError):
            key = identify(text)
        if key not in known:
            known.add(key)
            yield text


def _change(operation: Operation, out: JobsCommand, args: Namespace) -> None:
    """Do the operation to each job that is named by id, or that fits the options."""
    with reported(says="--to: {}"):
        operation = operation.told(getattr(args, "to", ""), me(), args.why)
    if bool(args.ids) == any(getattr(args, name) is not None for name in ("state", *FIELDS)):
        raise CommandError(f"Say which jobs to {operation.name}: their ids, or what they have in common (--task, ...).")
    outcomes: Iterable[tuple[Any, Outcome]]
    outcomes = ((text, _attempt(operation, text, args.dry_run)) for text in _each_once(args.ids))
    total = len(args.ids)
    if not args.ids:
        selection = which(args, operation.meant)
        outcomes, total = operation.attempt_all(selection, args.dry_run), selection.count()
    said = time.monotonic()
    done: Counter[bool] = Counter()
    others: Counter[str] = Counter()
    refused: list[dict[str, str]] = []
    for number, (key, outcome) in enumerate(outcomes, 1):
        done[outcome.is_done] += 1
        if outcome.is_other:
            others[outcome.says] += 1
        if args.as_json and not outcome.is_done:
            refused.append({"id": str(key), "why": outcome.says})
        if args.ids or (not outcome.is_done and done[False] <= NAMED):
            style = out.style.SUCCESS if outcome.is_done else out.style.WARNING
            out.say(f"{key} {style(outcome.says)}")
        if not args.ids and time.monotonic() - said > PROGRESS:
            said = time.monotonic()
            out.warn(f"{number} of {max(total, number)}", out.style.NOTICE)
    out.say_json({"dry_run": args.dry_run, "done": done[True], "asked_to_end": others.total(), "refused": refused})
    values: dict[str, Any] = {"done": done[True], "refused": done[False], "participle": operation.participle}
    if not args.ids:
        would = gettext("%(done)s would be %(participle)s, %(refused)s refused")
        did = gettext("%(done)s %(participle)s, %(refused)s refused")
        out.say((would if args.dry_run else did) % values)
        for says, count in others.items():
            out.say(gettext("of these %(number)s: %(says)s") % {"number": count, "says": says})
    if done[False]:
        values |= {"number": done[False], "total": done.total()}
        would = gettext("%(number)s of %(total)s would not be %(participle)s.")
        could = gettext("%(number)s of %(total)s could not be %(participle)s.")
        raise CommandError((would if args.dry_run else could) % values)


def _attempt(operation: Operation, text: str, dry_run: bool) -> Outcome:
    try:
        return operation.attempt(identify(text), dry_run)
    except ValueError as exc:
        return Outcome(False, str(exc))


def _subcommand(operation: Operation) -> Subcommand:
    options = [
        option("ids", ID[1]["help"], nargs="*", metavar="ID"),
        *WHICH,
        option("--why", "the reason, for the job's history", default="", also="--reason"),
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
    return Subcommand(operation.name, help, options, partial(_change, operation), wish=MEND)


OF_JOBS = [_subcommand(each) for each in OPERATIONS.values()]


def warn_of_unknown(out: JobsCommand, names: Iterable[str]) -> None:
    """Warn of unknown queues. It is no error: the first job of a queue, and its worker, may come later."""
    app = loaded_app()
    known = {*counts.paused(), *conf().QUEUES, *(queue for worker in counts.workers() for queue in worker.queues)}
    for live in (counts.in_line(), *(Job.objects.filter(state=state) for state in (State.SCHEDULED, State.RUNNING))):
        for rows in databases.each(live.values_list("queue", flat=True)):
            known.update(rows[: counts.MOST])
    if app is not None:
        known |= {*app.amqp.queues, *filter(None, (getattr(each, "queue", None) for each in app.tasks.values()))}
    for name in names:
        # The queue's jobs may wait behind more than were read. No queue's name has a NUL: the caller refuses that.
        own = counts.in_line().filter(queue=name) if "\0" not in name else Job.objects.none()
        if name not in known and not any(rows.exists() for rows in databases.each(own)):
            text = f"No worker, no job, no task and no setting knows a queue {name!r}{did_you_mean(name, known)}"
            out.warn(text, out.style.WARNING)
