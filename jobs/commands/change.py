"""``manage.py jobs retry|cancel|run``."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

from django.core.management.base import CommandError

from jobs import lifecycle
from jobs.commands.base import AS_JSON, DRY_RUN, Subcommand, option
from jobs.conf import conf
from jobs.errors import UniqueBusy, UniqueTaken
from jobs.models import Job, State
from jobs.selection import Selection, moment

IDS = option("ids", nargs="*", metavar="ID", help="the id of a job (a UUID)")
WHICH = (
    option("--task", metavar="NAME", help="all jobs of a task; NAME* for all names that begin so"),
    option("--queue", metavar="NAME", help="all jobs of a queue"),
    option("--state", choices=State.values, help="all jobs in a state"),
    option("--error", metavar="CLASS", help="all jobs whose last error is of this class: SMTPException"),
    option("--since", metavar="WHEN", help="only those created since then: 2h, 7d, 2026-11-21, '2026-11-21 14:30'"),
)

#: How many of those that were refused are named one by one.
NAMED = 20

#: Seconds between two lines about how far it is.
PROGRESS = 2.0


class Change(Subcommand):
    """One transition, for each of the jobs that are named, or that fit."""

    options = (IDS, *WHICH, DRY_RUN, AS_JSON)
    participle: ClassVar[str]
    #: The states out of which it is possible.
    states: ClassVar[tuple[State, ...]]
    #: The states of those that fit, unless --state says otherwise.
    meant: ClassVar[tuple[State, ...]]

    def transition(self, key: uuid.UUID, using: str) -> bool:
        raise NotImplementedError

    def run(
        self,
        *,
        ids: list[str],
        task: str | None,
        queue: str | None,
        state: str | None,
        error: str | None,
        since: str | None,
        dry_run: bool,
        as_json: bool,
        **options: Any,
    ) -> None:
        given = [task, queue, state, error, since]
        if bool(ids) == any(value is not None for value in given):
            raise CommandError(f"Say which jobs to {self.name}: their ids, or what they have in common (--task, ...).")
        if ids:
            self._report(self._named(ids, dry_run), as_json, dry_run, one_by_one=True)
            return
        try:
            created = moment(since) if since is not None else None
        except ValueError as exc:
            raise CommandError(f"--since: {exc}") from exc
        selection = Selection([state] if state else self.meant, task, queue, error, created)
        self._report(self._fitting(selection, dry_run), as_json, dry_run, one_by_one=False)

    def _named(self, ids: list[str], dry_run: bool) -> Iterator[tuple[str, bool, str]]:
        for text in dict.fromkeys(ids):
            yield text, *self.attempt(text, dry_run)

    def _fitting(self, selection: Selection, dry_run: bool) -> Iterator[tuple[str, bool, str]]:
        total, number, said = selection.count(), 0, time.monotonic()
        for number, (key, _) in enumerate(selection, 1):
            yield str(key), *self.attempt(str(key), dry_run)
            if time.monotonic() - said > PROGRESS:
                said = time.monotonic()
                self.stderr.write(f"{number} of {max(total, number)}", self.style.NOTICE)

    def _report(
        self, outcomes: Iterator[tuple[str, bool, str]], as_json: bool, dry_run: bool, one_by_one: bool
    ) -> None:
        counts: Counter[bool] = Counter()
        refused: list[dict[str, str]] = []
        for text, is_done, answer in outcomes:
            counts[is_done] += 1
            if not is_done:
                refused += [{"id": text, "why": answer}] if counts[False] <= NAMED or as_json else []
            if not as_json and (one_by_one or (not is_done and counts[False] <= NAMED)):
                self.say(f"{text} {(self.style.SUCCESS if is_done else self.style.WARNING)(answer)}")
        if as_json:
            self.say_json({"dry_run": dry_run, self.participle: counts[True], "refused": refused})
        elif not one_by_one:
            verb = "would be " if dry_run else ""
            self.say(f"{counts[True]} {verb}{self.participle}, {counts[False]} refused")
        if counts[False]:
            raise CommandError(
                f"{counts[False]} of {counts.total()} {'would' if dry_run else 'could'} not be {self.participle}."
            )

    def attempt(self, text: str, dry_run: bool) -> tuple[bool, str]:
        """Whether it was (would be) done, and what to say about it."""
        try:
            key = uuid.UUID(text)
        except ValueError:
            return False, "is no valid UUID"
        for alias in conf().DATABASES:
            now = Job.objects.using(alias).filter(pk=key).values_list("state", flat=True)
            if (state := now.first()) is None:
                continue
            if state in self.states and dry_run:
                return True, f"would be {self.participle} (is {state})"
            try:
                if state in self.states and self.transition(key, alias):
                    return True, f"{self.participle} (was {state})"
            except (UniqueTaken, UniqueBusy) as exc:
                return False, f"is {state}, and stays: {exc}"
            # Race: somebody else was faster. The answer is what the row says now.
            state = now.first() or state
            return self.otherwise(key, alias, state, dry_run)
        return False, "is unknown"

    def otherwise(self, key: uuid.UUID, using: str, state: str, dry_run: bool) -> tuple[bool, str]:
        return False, f"is {state}: nothing to {self.name}"


class Retry(Change):
    name = "retry"
    summary = "run failed or cancelled jobs again"
    more = (
        "Retries and crashes are counted from zero again. Without --state only failed jobs are meant. The exit status\n"
        "is 1 if a job could not be retried."
    )
    examples = (
        "retry 6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11",
        "retry --task shop.tasks.send_welcome_email --error SMTPConnectError --since 2h --dry-run",
    )
    participle = "retried"
    states = (State.FAILED, State.CANCELLED)
    meant = (State.FAILED,)

    def transition(self, key: uuid.UUID, using: str) -> bool:
        return lifecycle.replay(key, using)


class Cancel(Change):
    name = "cancel"
    summary = "cancel jobs that have not ended"
    more = (
        "A running job is asked to end: it does so at its next self.checkpoint(), or at its end, when all that it did\n"
        "in its transaction is rolled back. The exit status is 1 if a job could not be cancelled."
    )
    examples = ("cancel 6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11", "cancel --queue mail --state scheduled --dry-run")
    participle = "cancelled"
    states = (State.SCHEDULED, State.READY)
    meant = (State.SCHEDULED, State.READY, State.RUNNING)

    def transition(self, key: uuid.UUID, using: str) -> bool:
        return lifecycle.cancel(key, using)

    def otherwise(self, key: uuid.UUID, using: str, state: str, dry_run: bool) -> tuple[bool, str]:
        if state != State.RUNNING:
            return super().otherwise(key, using, state, dry_run)
        if dry_run:
            return True, "would be asked to end (is running)"
        if lifecycle.ask_to_end(key, using):
            return True, "asked to end at its next checkpoint or at its end (is running)"
        return self.attempt(str(key), dry_run)


class RunNow(Change):
    name = "run"
    summary = "let jobs run now that wait for their time, or whose message may be lost"
    more = (
        "A worker runs them as soon as it comes to them; nothing runs in this process. Jobs of a paused queue still\n"
        "wait for that. The exit status is 1 if a job does not wait."
    )
    examples = (
        "run 6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11",
        "run --task shop.tasks.send_welcome_email --state scheduled",
    )
    participle = "made due"
    states = (State.SCHEDULED, State.READY)
    meant = (State.SCHEDULED,)

    def transition(self, key: uuid.UUID, using: str) -> bool:
        return lifecycle.run_now(key, using)

    def otherwise(self, key: uuid.UUID, using: str, state: str, dry_run: bool) -> tuple[bool, str]:
        cure = f"; manage.py jobs retry {key}" if state in (State.FAILED, State.CANCELLED) else ""
        return False, f"is {state}: it does not wait{cure}"
