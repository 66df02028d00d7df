"""``manage.py jobs retry|cancel|run|move|prioritize|delete``."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from django.core.management.base import CommandError
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs.commands.base import AS_JSON, DRY_RUN, Option, Subcommand, me, option
from jobs.conf import conf
from jobs.models import State
from jobs.operations import CANCEL, DELETE, MOVE, PRIORITIZE, RETRY, RUN, By, Operation, Outcome
from jobs.selection import FIELDS, SEARCHED, Selection

IDS = option("ids", nargs="*", metavar="ID", help="the id of a job (a UUID)")
WHICH = (
    option("--task", metavar="NAME", help="all jobs of a task; NAME* for all names that begin so"),
    option("--queue", metavar="NAME", help="all jobs of a queue"),
    option("--state", choices=State.values, help="all jobs in a state"),
    option(
        "--node",
        metavar="NAME",
        help="all jobs that a worker runs, or ran last: its id or the first 8 digits of it, or its host's name",
    ),
    option("--key", metavar="KEY", help="all jobs of a unique key, or of a marker's"),
    option("--parent", metavar="ID", help="all jobs that were called by the body of this one"),
    option("--error", metavar="CLASS", help="all jobs whose last error is of this class: SMTPException"),
    option("--since", metavar="WHEN", help="only those created since then: 2h, 7d, 2026-11-21, '2026-11-21 14:30'"),
    option("--until", metavar="WHEN", help="only those created before then"),
    option("--contains", metavar="TEXT", help=f"of the newest {SEARCHED:,}: with this text in their arguments"),
)


def which(options: dict[str, Any], states: Sequence[str]) -> Selection:
    """What the options of :data:`WHICH` say.

    Raises:
        CommandError: one of them says nothing.
    """
    for name in FIELDS:
        if options[name] is not None and not options[name].strip():
            # A variable of a script that is not set must not mean "all".
            raise CommandError(f"--{name} is empty: give it a value, or leave it out.")
    if options["contains"] is not None and conf().REDACT is not None:
        raise CommandError("--contains: the arguments are redacted (JOBS['REDACT']), and nobody may search in them.")
    try:
        return Selection.of(options, states)
    except ValueError as exc:
        raise CommandError(f"--{exc}") from exc


#: How many of those that were refused are named one by one.
NAMED = 20

#: Seconds between two lines about how far it is.
PROGRESS = 2.0


class Change(Subcommand):
    """One operation, for each of the jobs that are named, or that fit."""

    options: ClassVar[Sequence[Option]] = (
        IDS,
        *WHICH,
        option("--why", default="", help="the reason, for the job's history"),
        DRY_RUN,
        AS_JSON,
    )
    operation: ClassVar[Operation]

    def run(
        self,
        *,
        ids: list[str],
        state: str | None,
        why: str,
        dry_run: bool,
        as_json: bool,
        to: str = "",
        **options: Any,
    ) -> None:
        by = By(me(), why)
        try:
            self.told = self.operation.told(to)
        except ValueError as exc:
            raise CommandError(f"--to: {exc}") from exc
        if bool(ids) == any(value is not None for value in (state, *(options[name] for name in FIELDS))):
            raise CommandError(f"Say which jobs to {self.name}: their ids, or what they have in common (--task, ...).")
        if ids:
            self._report(self._named(ids, by, dry_run), as_json, dry_run, one_by_one=True)
            return
        selection = which(options, [state] if state else self.operation.meant)
        self._report(self._fitting(selection, by, dry_run), as_json, dry_run, one_by_one=False)

    def _named(self, ids: list[str], by: By, dry_run: bool) -> Iterator[tuple[str, Outcome]]:
        for text in dict.fromkeys(ids):
            try:
                key = uuid.UUID(text)
            except ValueError:
                yield text, Outcome(False, _("is no valid UUID"))
            else:
                yield text, self.told.attempt(key, by, dry_run)

    def _fitting(self, selection: Selection, by: By, dry_run: bool) -> Iterator[tuple[str, Outcome]]:
        total, said = selection.count(), time.monotonic()
        for number, (key, _alias) in enumerate(selection, 1):
            yield str(key), self.told.attempt(key, by, dry_run)
            if time.monotonic() - said > PROGRESS:
                said = time.monotonic()
                self.stderr.write(f"{number} of {max(total, number)}", self.style.NOTICE)

    def _report(self, outcomes: Iterator[tuple[str, Outcome]], as_json: bool, dry_run: bool, one_by_one: bool) -> None:
        counts: Counter[bool] = Counter()
        refused: list[dict[str, str]] = []
        participle = str(self.told.participle)
        for text, outcome in outcomes:
            counts[outcome.is_done] += 1
            is_named = not outcome.is_done and counts[False] <= NAMED
            if not outcome.is_done and (is_named or as_json):
                refused.append({"id": text, "why": outcome.says})
            if not as_json and (one_by_one or is_named):
                style = self.style.SUCCESS if outcome.is_done else self.style.WARNING
                self.say(f"{text} {style(outcome.says)}")
        if as_json:
            self.say_json({"dry_run": dry_run, "done": counts[True], "refused": refused})
        elif not one_by_one:
            if dry_run:
                says = gettext("%(done)s would be %(participle)s, %(refused)s refused")
            else:
                says = gettext("%(done)s %(participle)s, %(refused)s refused")
            self.say(says % {"done": counts[True], "participle": participle, "refused": counts[False]})
        if counts[False]:
            if dry_run:
                says = gettext("%(number)s of %(total)s would not be %(participle)s.")
            else:
                says = gettext("%(number)s of %(total)s could not be %(participle)s.")
            raise CommandError(says % {"number": counts[False], "total": counts.total(), "participle": participle})


class Retry(Change):
    name = "retry"
    operation = RETRY
    summary = "run failed or cancelled jobs again"
    more = (
        "Retries and crashes are counted from zero again. Without --state only failed jobs are meant. The exit status\n"
        "is 1 if a job could not be retried."
    )
    examples = (
        "retry 6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11",
        "retry --task shop.tasks.send_welcome_email --error SMTPConnectError --since 2h --dry-run",
    )


class Cancel(Change):
    name = "cancel"
    operation = CANCEL
    summary = "cancel jobs that have not ended"
    more = (
        "A running job is asked to end: it does so at its next self.checkpoint(), or at its end, when all that it did\n"
        "in its transaction is rolled back. The exit status is 1 if a job could not be cancelled."
    )
    examples = ("cancel 6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11", "cancel --queue mail --state scheduled --dry-run")


class RunNow(Change):
    name = "run"
    operation = RUN
    summary = "let jobs run now that wait for their time"
    more = (
        "A worker runs them as soon as it comes to them; nothing runs in this process. Jobs of a paused queue still\n"
        "wait for that. The exit status is 1 if a job does not wait."
    )
    examples = (
        "run 6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11",
        "run --task shop.tasks.send_welcome_email --state scheduled",
    )


class Move(Change):
    name = "move"
    operation = MOVE
    summary = "let waiting jobs go to another queue"
    more = "A worker that consumes that queue runs them. The exit status is 1 if a job does not wait."
    options = (*Change.options, option("--to", required=True, metavar="QUEUE", help="where they go"))
    examples = (
        "move 6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11 --to mail",
        "move --queue slow --to celery --dry-run",
    )


class Prioritize(Change):
    name = "prioritize"
    operation = PRIORITIZE
    summary = "give waiting jobs another priority"
    more = (
        "The order is that of the project's broker: with RabbitMQ the highest number runs first, with Redis and\n"
        "without a broker the lowest. The exit status is 1 if a job does not wait."
    )
    options = (*Change.options, option("--to", required=True, metavar="NUMBER", help="the priority, 0 to 255"))
    examples = (
        "prioritize 6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11 --to 9",
        "prioritize --task shop.tasks.send_welcome_email --to 0 --dry-run",
    )


class Delete(Change):
    name = "delete"
    operation = DELETE
    summary = "delete jobs that ended, with their history"
    more = (
        "For ever, and whatever their age; prune is for the old ones. Not those to whose result a marker points. The\n"
        "exit status is 1 if a job could not be deleted."
    )
    examples = (
        "delete 6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11",
        "delete --task shop.tasks.send_welcome_email --state failed --dry-run",
    )
