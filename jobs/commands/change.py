"""``manage.py jobs retry|cancel``."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

from django.core.management.base import CommandError

from jobs import lifecycle
from jobs.commands.base import DRY_RUN, Subcommand, option
from jobs.conf import conf
from jobs.errors import UniqueBusy, UniqueTaken
from jobs.models import Job, State

IDS = option("ids", nargs="+", metavar="ID", help="the id of a job (a UUID)")


class Change(Subcommand):
    """One transition, for each of the jobs that are named."""

    options = (IDS, DRY_RUN)
    participle: ClassVar[str]
    #: The states out of which it is possible.
    states: ClassVar[tuple[State, ...]]

    def transition(self, key: uuid.UUID, using: str) -> bool:
        raise NotImplementedError

    def run(self, *, ids: list[str], dry_run: bool, **options: Any) -> None:
        ids = list(dict.fromkeys(ids))
        refused = 0
        for text in ids:
            is_done, answer = self.attempt(text, dry_run)
            refused += not is_done
            style = self.style.SUCCESS if is_done else self.style.WARNING
            self.say(f"{text} {style(answer)}")
        if refused:
            raise CommandError(f"{refused} of {len(ids)} {'would' if dry_run else 'could'} not be {self.participle}.")

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
    more = "Retries and crashes are counted from zero again. The exit status is 1 if a job could not be retried."
    examples = ("retry 6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11", "retry --dry-run ID ID ID")
    participle = "retried"
    states = (State.FAILED, State.CANCELLED)

    def transition(self, key: uuid.UUID, using: str) -> bool:
        return lifecycle.replay(key, using)


class Cancel(Change):
    name = "cancel"
    summary = "cancel jobs that have not ended"
    more = (
        "A running job is asked to end: it does so at its next self.checkpoint(), or at its end, when all that it did\n"
        "in its transaction is rolled back. The exit status is 1 if a job could not be cancelled."
    )
    examples = ("cancel 6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11", "cancel --dry-run ID ID ID")
    participle = "cancelled"
    states = (State.SCHEDULED, State.READY)

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
