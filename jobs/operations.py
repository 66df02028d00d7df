"""What a person may do to a job, from the command line or in the admin: each at most one transition, with its answer.

Who did it, when and why is written into the job's history, together with the transition.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.utils.translation import gettext as translate
from django.utils.translation import gettext_lazy as _

from jobs import lifecycle
from jobs.arguments import scrub
from jobs.conf import conf
from jobs.errors import UniqueBusy, UniqueTaken
from jobs.models import Action, Job, State


@dataclass(frozen=True, slots=True)
class Outcome:
    is_done: bool
    #: What to say about it.
    says: str


@dataclass(frozen=True, slots=True)
class By:
    """Who does it, and why."""

    who: str = ""
    why: str = ""


class Operation:
    #: A verb, as on the command line.
    name: str
    #: For a button.
    label: Any
    #: Who may do it: the codename, in this app.
    permission: str
    #: For "128 retried".
    participle: Any
    #: The states out of which it is possible.
    states: tuple[State, ...]
    #: Those that are meant if nobody names a state.
    meant: tuple[State, ...]

    def attempt(self, key: uuid.UUID, by: By, dry_run: bool = False) -> Outcome:
        """Do it to the job, in whatever database it is."""
        for alias in conf().DATABASES:
            now = Job.objects.using(alias).filter(pk=key).values_list("state", flat=True)
            if (state := now.first()) is None:
                continue
            if state in self.states and dry_run:
                values = {"participle": self.participle, "state": state}
                return Outcome(True, translate("would be %(participle)s (is %(state)s)") % values)
            try:
                if state in self.states and self._noted(key, alias, by, self._change):
                    values = {"participle": self.participle, "state": state}
                    return Outcome(True, translate("%(participle)s (was %(state)s)") % values)
            except (UniqueTaken, UniqueBusy) as exc:
                return Outcome(False, translate("is %(state)s, and stays: %(why)s") % {"state": state, "why": exc})
            # Race: somebody else was faster. The answer is what the row says now.
            return self._otherwise(key, alias, now.first() or state, by, dry_run)
        return Outcome(False, translate("is unknown"))

    def _change(self, key: uuid.UUID, using: str, by: By) -> bool:
        raise NotImplementedError

    def _otherwise(self, key: uuid.UUID, using: str, state: str, by: By, dry_run: bool) -> Outcome:
        return Outcome(False, translate("is %(state)s: nothing to %(verb)s") % {"state": state, "verb": self.name})

    def _noted(self, key: uuid.UUID, using: str, by: By, change: Callable[[uuid.UUID, str, By], bool]) -> bool:
        with transaction.atomic(using=using):
            done = change(key, using, by)
            if done:
                Action.objects.using(using).create(
                    job=key, what=self.name, by=scrub(by.who, 150), why=scrub(by.why, 1000)
                )
        return done


class Retry(Operation):
    name = "retry"
    label = _("Retry")
    permission = "retry_job"
    participle = _("retried")
    states = (State.FAILED, State.CANCELLED)
    meant = (State.FAILED,)

    def _change(self, key: uuid.UUID, using: str, by: By) -> bool:
        return lifecycle.replay(key, using)


class Cancel(Operation):
    name = "cancel"
    label = _("Cancel")
    permission = "cancel_job"
    participle = _("cancelled")
    states = (State.SCHEDULED, State.READY)
    meant = (State.SCHEDULED, State.READY, State.RUNNING)

    def _change(self, key: uuid.UUID, using: str, by: By) -> bool:
        return lifecycle.cancel(key, using, why=_because(by))

    def _otherwise(self, key: uuid.UUID, using: str, state: str, by: By, dry_run: bool) -> Outcome:
        if state != State.RUNNING:
            return super()._otherwise(key, using, state, by, dry_run)
        if dry_run:
            return Outcome(True, translate("would be asked to end (is running)"))
        if self._noted(key, using, by, self._ask):
            return Outcome(True, translate("asked to end at its next checkpoint or at its end (is running)"))
        # Race: it has just ended, or waits again.
        return self.attempt(key, by)

    def _ask(self, key: uuid.UUID, using: str, by: By) -> bool:
        return lifecycle.ask_to_end(key, using, why=_because(by))


class RunNow(Operation):
    name = "run"
    label = _("Run now")
    permission = "retry_job"
    participle = _("made due")
    states = (State.SCHEDULED, State.READY)
    meant = (State.SCHEDULED,)

    def _change(self, key: uuid.UUID, using: str, by: By) -> bool:
        return lifecycle.run_now(key, using)

    def _otherwise(self, key: uuid.UUID, using: str, state: str, by: By, dry_run: bool) -> Outcome:
        if state in (State.FAILED, State.CANCELLED):
            says = translate("is %(state)s: it does not wait; retry it")
        else:
            says = translate("is %(state)s: it does not wait")
        return Outcome(False, says % {"state": state})


def _because(by: By) -> str:
    return " ".join(filter(None, ["cancelled by hand", by.who and f"by {by.who}", by.why and f"({by.why})"]))


RETRY, CANCEL, RUN = Retry(), Cancel(), RunNow()
OPERATIONS: dict[str, Operation] = {each.name: each for each in (RETRY, CANCEL, RUN)}
