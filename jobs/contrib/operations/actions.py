"""What a person may do to a job, on the command line or in the admin: each makes at most one transition.

Who did it, when and why is written into the job's history, together with the transition.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import Any, ClassVar, NamedTuple

from django.db import transaction
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs import extensions
from jobs.contrib.operations import by_hand
from jobs.contrib.operations.notes import note, signed
from jobs.contrib.operations.selection import Selection
from jobs.errors import Busy, UniqueBusy, UniqueTaken
from jobs.lifecycle import transitions, unique
from jobs.models import WAITING, Job, State
from jobs.store import databases


class Outcome(NamedTuple):
    is_done: bool
    text: Any  #: The answer to the person, lazily translated.
    values: Mapping[str, Any] = {}

    @property
    def says(self) -> str:
        """The text, in the language that is active when it is read."""
        return str(self.text) % self.values

    @property
    def is_other(self) -> bool:
        """It is done in another manner than the operation's participle says: asked to end, and not cancelled."""
        return self.is_done and self.text not in SAID


class Refused(Exception):
    """Something other than the job's state prevents it; the text says what, in the reader's language."""


SAID = _("%(participle)s (was %(state)s)"), _("would be %(participle)s (is %(state)s)")
STAYS = _("is %(state)s, and stays: %(why)s")


class Operation:
    """The docstring of each is its help on the command line, with a summary in the first line."""

    name: str  #: A verb, as on the command line.
    label: Any  #: For a button.
    permission = "change_job"  #: Who may do it: the codename, in this app.
    participle: Any = ""  #: For "128 retried".
    states: tuple[State, ...] = WAITING  #: The states of a job that allow it.
    meant: tuple[State, ...] = states  #: The states that are meant if no state is named.
    otherwise: Any  #: The answer for a job in another state.
    instead: ClassVar[dict[str, Any]] = {}  #: By state: the answer instead of ``otherwise``.
    said: ClassVar[dict[str, tuple[Any, Any]]] = {}  #: By state: the answers when it is done, and when it would be.
    asks: Any = None  #: The question for its value in a form; None: it needs none. The value comes by :meth:`told`.
    example = ""  #: An example of the value, for the command line.
    warns: Any = ""  #: A warning, for a form.
    deletes = False  #: Whether it deletes the job.
    reads: tuple[str, ...] = ("state",)  #: The columns that :meth:`foresee` looks at.
    value = who = why = ""  #: The value it was given, the person who gave it, and why.

    def told(self, value: str, who: str = "", why: str = "") -> Operation:
        """The operation with its value. ``ValueError``: the value is not possible; the text says which are."""
        told = copy(self)
        told.value, told.participle = self.read(value.strip())
        told.who, told.why = who, why
        return told

    def read(self, value: str) -> tuple[str, Any]:
        """The value, and the participle that names it."""
        return "", self.participle

    def attempt(
        self, key: uuid.UUID, dry_run: bool = False, also: Callable[[Outcome], Any] = lambda outcome: None
    ) -> Outcome:
        """Do the operation to the job, in the database that has it. ``also`` is called in the same transaction."""
        for rows in databases.each(Job.objects.filter(pk=key)):
            if dry_run:
                if (job := rows.first()) is not None:
                    return self.foresee(job)
                continue
            found, alias, tried = rows.values_list("state", flat=True), rows.db, set[str]()
            # Race: another process may change the job first. Then the row is read again, and each state is tried once.
            while (state := found.first()) is not None:
                values = self._values(state)
                if state not in self.states or state in tried:
                    return Outcome(False, self.instead.get(state, self.otherwise), values)
                tried.add(state)
                success, _promise = self.said.get(state, SAID)
                try:
                    self.prepare(key, alias)
                    with transaction.atomic(using=alias):
                        if done := self.change(key, alias, state):
                            self.note(key, alias)
                            also(Outcome(True, success, values))
                except Refused as exc:
                    return Outcome(False, STAYS, {**values, "why": str(exc)})
                if done:
                    return Outcome(True, success, values)
        return Outcome(False, _("is unknown"))

    def foresee(self, job: Job) -> Outcome:
        """What :meth:`attempt` would answer for a row."""
        values = self._values(job.state)
        if job.state not in self.states:
            return Outcome(False, self.instead.get(job.state, self.otherwise), values)
        try:
            self.rehearse(job)
        except Refused as exc:
            return Outcome(False, STAYS, {**values, "why": str(exc)})
        _success, promise = self.said.get(job.state, SAID)
        return Outcome(True, promise, values)

    def attempt_all(self, selection: Selection, dry_run: bool = False) -> Iterator[tuple[uuid.UUID, Outcome]]:
        """Do the operation to each job of a selection; a dry run reads many rows at once."""
        for job in selection.jobs(*self.reads if dry_run else ()):
            yield job.pk, self.foresee(job) if dry_run else self.attempt(job.pk)

    def _values(self, state: str) -> dict[str, Any]:
        return {"participle": self.participle, "state": dict(State.choices).get(state, state)}

    def prepare(self, key: uuid.UUID, using: str) -> None:
        """What has to be done before the transaction of :meth:`change`."""

    def change(self, key: uuid.UUID, using: str, state: str) -> bool:
        """Make the transition, or raise :class:`Refused`; False if the job is no longer in this state."""
        raise NotImplementedError

    def rehearse(self, job: Job) -> None:
        """Raise ``Refused`` if :meth:`change` would."""

    def by_hand(self, participle: str) -> str:
        """The reason for the job's error, in English, as everything that is stored."""
        return signed(f"{participle} by hand", self.who, self.why)

    def note(self, key: uuid.UUID, using: str) -> None:
        note(key, using, self.name, self.value, self.who, self.why)


class Retry(Operation):
    """Run failed or cancelled jobs again.

    Retries and crashes are counted from zero again. Without --state only failed jobs are meant.
    """

    name = "retry"
    label = _("Retry")
    permission = "retry_job"
    participle = _("retried")
    states = (State.FAILED, State.CANCELLED)
    meant = (State.FAILED,)
    otherwise = _("is %(state)s: nothing to retry")
    reads = ("state", "task", "unique_key", "unique_expires_at")

    def change(self, key: uuid.UUID, using: str, state: str) -> bool:
        try:
            return by_hand.retry_by_hand(key, using)
        except UniqueTaken:
            raise Refused(unique.describe(Job.objects.using(using).get(pk=key), gettext)) from None
        except UniqueBusy:
            says = gettext("another transaction is about to take its unique key; try again in a moment")
            raise Refused(says) from None
        except Busy as exc:
            raise Refused(str(exc)) from None

    def rehearse(self, job: Job) -> None:
        if unique.holder_of(job) is not None:
            raise Refused(unique.describe(job, gettext))


class Cancel(Operation):
    """Cancel jobs that have not ended.

    A running job is asked to end: it does so at its next self.checkpoint(), or at its end, when all that it did
    in its transaction is rolled back; a durable task at its next step, and an async def body where it awaits.
    """

    name = "cancel"
    label = _("Cancel")
    permission = "cancel_job"
    participle = _("cancelled")
    states = meant = (State.SCHEDULED, State.READY, State.RUNNING)
    otherwise = _("is %(state)s: nothing to cancel")
    said: ClassVar[dict[str, tuple[Any, Any]]] = {
        State.RUNNING: (
            _("asked to end at its next checkpoint or at its end (is running)"),
            _("would be asked to end (is running)"),
        )
    }

    def change(self, key: uuid.UUID, using: str, state: str) -> bool:
        end = transitions.ask_to_end if state == State.RUNNING else transitions.cancel
        return end(key, using, why=self.by_hand("cancelled"))


class RunNow(Operation):
    """Let jobs run now that wait for their time.

    A worker runs them as soon as it comes to them; nothing runs in this process. Jobs of a paused queue still
    wait for that.
    """

    name = "run"
    label = _("Run now")
    permission = "retry_job"
    participle = _("made due")
    states = meant = (State.SCHEDULED,)
    otherwise = _("is %(state)s: it does not wait for its time (jobs why says what it waits for)")
    instead: ClassVar[dict[str, Any]] = dict.fromkeys(Retry.states, _("is %(state)s: it does not wait; retry it"))
    reads = ("state", "run_at")

    def foresee(self, job: Job) -> Outcome:
        if job.state == State.SCHEDULED and not by_hand.waits_for_its_time(job):
            return Outcome(False, self.otherwise, self._values(job.state))
        return super().foresee(job)

    def change(self, key: uuid.UUID, using: str, state: str) -> bool:
        return by_hand.run_now(key, using)


EACH = (Retry(), RunNow(), Cancel())
#: By name. The operations of extensions (their ``actions.py``) come behind.
OPERATIONS: dict[str, Operation] = {each.name: each for each in EACH}

tuple(extensions.modules("actions"))
