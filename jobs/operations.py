"""What a person may do to a job, from the command line or in the admin: each at most one transition, with its answer.

Who did it, when and why is written into the job's history, together with the transition.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from celery import current_app
from django.db import transaction
from django.utils.text import format_lazy
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs import calls, lifecycle, unique
from jobs.arguments import scrub
from jobs.conf import conf
from jobs.errors import UniqueBusy, UniqueTaken
from jobs.maintenance import prune
from jobs.models import ENDED, Action, Job, State
from jobs.project import celery_app
from jobs.queues import MAX_NAME

logger = logging.getLogger("jobs")


@dataclass(frozen=True, slots=True)
class Outcome:
    is_done: bool
    #: What to say about it, lazily translated.
    text: Any
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def says(self) -> str:
        """In the language that is active by then."""
        return str(self.text) % self.values


@dataclass(frozen=True, slots=True)
class By:
    """Who does it, and why."""

    who: str = ""
    why: str = ""


class Refused(Exception):
    """The job's state would allow it, and something else does not; says what, in the reader's language."""


class Operation:
    name: str  #: A verb, as on the command line.
    label: Any  #: For a button.
    permission: str  #: Who may do it: the codename, in this app.
    participle: Any = ""  #: For "128 retried".
    states: tuple[State, ...]  #: Out of which it is possible.
    meant: tuple[State, ...]  #: Those that are meant if nobody names a state.
    otherwise: Any  #: To say of a job in another state.
    asks: Any = None  #: What it needs to be told, for a form; None: nothing. It comes by :meth:`told`.
    value = ""  #: What it was told.
    is_apart = False  #: Not among the plain buttons: it asks for a value, or cannot be taken back.

    def told(self, value: str) -> Operation:
        """The operation with what it needs to know.

        Raises:
            ValueError: that cannot be; says what can.
        """
        return self

    def attempt(self, key: uuid.UUID, by: By, dry_run: bool = False) -> Outcome:
        """Do it to the job, in whatever database it is."""
        for alias in conf().DATABASES:
            found = Job.objects.using(alias).filter(pk=key).values_list("state", flat=True)
            tried: set[str] = set()
            # Race: if somebody else was faster, the row is asked again. It answers for each state once.
            while (state := found.first()) is not None:
                values = {"participle": self.participle, "state": dict(State.choices).get(state, state)}
                if state not in self.states or state in tried:
                    return Outcome(False, self.refusal(state), values)
                tried.add(state)
                try:
                    if dry_run:
                        self.rehearse(key, alias)
                        return Outcome(True, self.promise(state), values)
                    with transaction.atomic(using=alias):
                        if done := self.change(key, alias, by, state):
                            self.note(key, alias, by)
                except Refused as exc:
                    return Outcome(False, _("is %(state)s, and stays: %(why)s"), {**values, "why": str(exc)})
                if done:
                    return Outcome(True, self.success(state), values)
        return Outcome(False, _("is unknown"))

    def change(self, key: uuid.UUID, using: str, by: By, state: str) -> bool:
        """Make the transition out of one of :attr:`states`; False if the job is not in it any more.

        Raises:
            Refused: something else stands in the way.
        """
        raise NotImplementedError

    def rehearse(self, key: uuid.UUID, using: str) -> None:
        """
        Raises:
            Refused: :meth:`change` would raise it.
        """

    def note(self, key: uuid.UUID, using: str, by: By) -> None:
        why = ": ".join(filter(None, [self.value, by.why]))
        Action.objects.using(using).create(job=key, what=self.name, by=scrub(by.who, 150), why=scrub(why, 1000))

    def success(self, state: str) -> Any:
        return _("%(participle)s (was %(state)s)")

    def promise(self, state: str) -> Any:
        return _("would be %(participle)s (is %(state)s)")

    def refusal(self, state: str) -> Any:
        return self.otherwise


class Retry(Operation):
    name = "retry"
    label = _("Retry")
    permission = "retry_job"
    participle = _("retried")
    states = (State.FAILED, State.CANCELLED)
    meant = (State.FAILED,)
    otherwise = _("is %(state)s: nothing to retry")

    def change(self, key: uuid.UUID, using: str, by: By, state: str) -> bool:
        try:
            return lifecycle.replay(key, using)
        except UniqueTaken:
            raise Refused(unique.describe(Job.objects.using(using).get(pk=key), gettext)) from None
        except UniqueBusy:
            says = gettext("another transaction is about to take its unique key; try again in a moment")
            raise Refused(says) from None

    def rehearse(self, key: uuid.UUID, using: str) -> None:
        job = Job.objects.using(using).filter(pk=key).first()
        if job is not None and unique.holder_of(job) is not None:
            raise Refused(unique.describe(job, gettext))


class Cancel(Operation):
    name = "cancel"
    label = _("Cancel")
    permission = "cancel_job"
    participle = _("cancelled")
    states = meant = (State.SCHEDULED, State.READY, State.RUNNING)
    otherwise = _("is %(state)s: nothing to cancel")

    def change(self, key: uuid.UUID, using: str, by: By, state: str) -> bool:
        why = " ".join(filter(None, ["cancelled by hand", by.who and f"by {by.who}", by.why and f"({by.why})"]))
        end = lifecycle.ask_to_end if state == State.RUNNING else lifecycle.cancel
        return end(key, using, why=why)

    def success(self, state: str) -> Any:
        asked = _("asked to end at its next checkpoint or at its end (is running)")
        return asked if state == State.RUNNING else super().success(state)

    def promise(self, state: str) -> Any:
        return _("would be asked to end (is running)") if state == State.RUNNING else super().promise(state)


class RunNow(Operation):
    name = "run"
    label = _("Run now")
    permission = "retry_job"
    participle = _("made due")
    states = meant = (State.SCHEDULED,)
    otherwise = _("is %(state)s: it does not wait for its time")

    def change(self, key: uuid.UUID, using: str, by: By, state: str) -> bool:
        return lifecycle.run_now(key, using)

    def refusal(self, state: str) -> Any:
        has_ended = state in (State.FAILED, State.CANCELLED)
        return _("is %(state)s: it does not wait; retry it") if has_ended else self.otherwise


class Move(Operation):
    name = "move"
    label = _("Change queue")
    permission = "change_job"
    states = meant = (State.SCHEDULED, State.READY)
    otherwise = _("is %(state)s: nothing to move")
    asks = _("To which queue:")
    is_apart = True

    def told(self, value: str) -> Operation:
        told = Move()
        told.value = name = value.strip()
        if not 0 < len(name) <= MAX_NAME or "\0" in name:
            raise ValueError(gettext("Name a queue, in 1 to %(number)s characters.") % {"number": MAX_NAME})
        if (app := celery_app()) is not None:
            calls.known_queue(app, name)
        told.participle = format_lazy(_("moved to {queue}"), queue=name)
        return told

    def change(self, key: uuid.UUID, using: str, by: By, state: str) -> bool:
        job = Job.objects.using(using).select_for_update().filter(pk=key).first()
        if job is None:
            return False
        options = {name: value for name, value in job.options.items() if name not in ("exchange", "routing_key")}
        return lifecycle.redirect(key, using, {"queue": self.value, "options": options})


class Prioritize(Operation):
    name = "prioritize"
    label = _("Change priority")
    permission = "change_job"
    states = meant = (State.SCHEDULED, State.READY)
    otherwise = _("is %(state)s: nothing to prioritize")
    asks = _("Priority (0 to 255; whether more is first, the broker decides):")
    is_apart = True

    def told(self, value: str) -> Operation:
        number = value.strip()
        if not (number.isascii() and number.isdecimal() and int(number) <= 255):
            says = gettext("A priority is a whole number from 0 to 255, and not %(value)r.")
            raise ValueError(says % {"value": value})
        told = Prioritize()
        told.value = str(int(number))
        told.participle = format_lazy(_("given priority {number}"), number=told.value)
        return told

    def change(self, key: uuid.UUID, using: str, by: By, state: str) -> bool:
        priority = int(self.value)
        columns = {"priority": priority, "rank": calls.rank_of(current_app, priority)}
        return lifecycle.redirect(key, using, columns)


class Delete(Operation):
    name = "delete"
    label = _("Delete")
    permission = "delete_job"
    participle = _("deleted")
    states = meant = ENDED
    otherwise = _("is %(state)s: nothing to delete")
    is_apart = True

    def change(self, key: uuid.UUID, using: str, by: By, state: str) -> bool:
        self.rehearse(key, using)
        return prune.delete([key], using) == 1

    def rehearse(self, key: uuid.UUID, using: str) -> None:
        if prune.is_kept(key, using):
            says = gettext("a marker points at it, so that its result is replayed; prune deletes both when it expires")
            raise Refused(says)
        if prune.may_come_again(key, using):
            says = gettext("its message was another program's, and would run again if it came again; try in a day")
            raise Refused(says)

    def note(self, key: uuid.UUID, using: str, by: By) -> None:
        """Its history goes with it; what stays is the log."""
        about = {"action": "deleted", "job": str(key), "by": by.who, "why": by.why}
        logger.info("the job %s was deleted by %s: %s", key, by.who or "somebody", by.why or "-", extra=about)


RETRY, CANCEL, RUN, MOVE, PRIORITIZE, DELETE = Retry(), Cancel(), RunNow(), Move(), Prioritize(), Delete()
OPERATIONS: dict[str, Operation] = {each.name: each for each in (RETRY, RUN, CANCEL, MOVE, PRIORITIZE, DELETE)}
