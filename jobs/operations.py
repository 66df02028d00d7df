"""What a person may do to a job, from the command line or in the admin: each at most one transition, with its answer.

Who did it, when and why is written into the job's history, together with the transition.
"""

from __future__ import annotations

import copy
import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from celery import current_app
from django.db import transaction
from django.utils.text import format_lazy
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs import calls, history, lifecycle, unique
from jobs.arguments import scrub
from jobs.conf import conf
from jobs.errors import UniqueBusy, UniqueTaken
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
    #: A verb, as on the command line.
    name: str
    #: For a button.
    label: Any
    #: Who may do it: the codename, in this app.
    permission: str
    #: For "128 retried"; of what needs to be told something, by :meth:`told`.
    participle: Any = ""
    #: The states out of which it is possible.
    states: tuple[State, ...]
    #: Those that are meant if nobody names a state.
    meant: tuple[State, ...]
    #: To say of a job in none of these states.
    otherwise: Any
    #: What it needs to be told, for a form; None: nothing. It comes by :meth:`told`.
    asks: ClassVar[Any] = None
    value: str = ""
    #: Not among the plain buttons: it asks for a value, or cannot be taken back.
    is_apart: ClassVar[bool] = False

    def told(self, value: str) -> Self:
        """The operation with what it needs to know.

        Raises:
            ValueError: that cannot be; says what can.
        """
        return self

    def attempt(self, key: uuid.UUID, by: By, dry_run: bool = False) -> Outcome:
        """Do it to the job, in whatever database it is."""
        for alias in conf().DATABASES:
            now = Job.objects.using(alias).filter(pk=key).values_list("state", flat=True)
            if (state := now.first()) is None:
                continue
            if state in self.states and dry_run:
                if hindrance := self._hindrance(key, alias):
                    return Outcome(
                        False, _("is %(state)s, and stays: %(why)s"), {**self._values(state), "why": hindrance}
                    )
                return Outcome(True, _("would be %(participle)s (is %(state)s)"), self._values(state))
            try:
                if state in self.states and self._noted(key, alias, by, self._change):
                    return Outcome(True, _("%(participle)s (was %(state)s)"), self._values(state))
            except (UniqueTaken, UniqueBusy, Refused) as exc:
                values = {**self._values(state), "why": _why(exc, key, alias)}
                return Outcome(False, _("is %(state)s, and stays: %(why)s"), values)
            # Race: somebody else was faster. The answer is what the row says now.
            return self._otherwise(key, alias, now.first() or state, by, dry_run)
        return Outcome(False, _("is unknown"))

    def _change(self, key: uuid.UUID, using: str, by: By) -> bool:
        raise NotImplementedError

    def _hindrance(self, key: uuid.UUID, using: str) -> str:
        """What else stands in the way of a job in one of the states; empty if nothing does."""
        return ""

    def _otherwise(self, key: uuid.UUID, using: str, state: str, by: By, dry_run: bool) -> Outcome:
        return Outcome(False, self.otherwise, self._values(state))

    def _values(self, state: str) -> dict[str, Any]:
        return {"participle": self.participle, "state": dict(State.choices).get(state, state)}

    def _noted(self, key: uuid.UUID, using: str, by: By, change: Callable[[uuid.UUID, str, By], bool]) -> bool:
        with transaction.atomic(using=using):
            done = change(key, using, by)
            if done:
                why = ": ".join(filter(None, [self.value, by.why]))
                Action.objects.using(using).create(job=key, what=self.name, by=scrub(by.who, 150), why=scrub(why, 1000))
        return done


class Retry(Operation):
    name = "retry"
    label = _("Retry")
    permission = "retry_job"
    participle = _("retried")
    states = (State.FAILED, State.CANCELLED)
    meant = (State.FAILED,)
    otherwise = _("is %(state)s: nothing to retry")

    def _change(self, key: uuid.UUID, using: str, by: By) -> bool:
        return lifecycle.replay(key, using)

    def _hindrance(self, key: uuid.UUID, using: str) -> str:
        job = Job.objects.using(using).filter(pk=key).first()
        return "" if job is None or unique.holder_of(job) is None else unique.describe(job, gettext)


class Cancel(Operation):
    name = "cancel"
    label = _("Cancel")
    permission = "cancel_job"
    participle = _("cancelled")
    states = (State.SCHEDULED, State.READY)
    meant = (State.SCHEDULED, State.READY, State.RUNNING)
    otherwise = _("is %(state)s: nothing to cancel")

    def _change(self, key: uuid.UUID, using: str, by: By) -> bool:
        return lifecycle.cancel(key, using, why=_because(by))

    def _otherwise(self, key: uuid.UUID, using: str, state: str, by: By, dry_run: bool) -> Outcome:
        if state != State.RUNNING:
            return super()._otherwise(key, using, state, by, dry_run)
        if dry_run:
            return Outcome(True, _("would be asked to end (is running)"))
        if self._noted(key, using, by, self._ask):
            return Outcome(True, _("asked to end at its next checkpoint or at its end (is running)"))
        # Race: it has just ended, or waits again.
        return self.attempt(key, by)

    def _ask(self, key: uuid.UUID, using: str, by: By) -> bool:
        return lifecycle.ask_to_end(key, using, why=_because(by))


class RunNow(Operation):
    name = "run"
    label = _("Run now")
    permission = "retry_job"
    participle = _("made due")
    states = (State.SCHEDULED,)
    meant = states
    otherwise = _("is %(state)s: it does not wait for its time")

    def _change(self, key: uuid.UUID, using: str, by: By) -> bool:
        return lifecycle.run_now(key, using)

    def _otherwise(self, key: uuid.UUID, using: str, state: str, by: By, dry_run: bool) -> Outcome:
        if state in (State.FAILED, State.CANCELLED):
            return Outcome(False, _("is %(state)s: it does not wait; retry it"), self._values(state))
        return super()._otherwise(key, using, state, by, dry_run)


class Redirect(Operation):
    """Another place in the queues for a job that waits."""

    permission = "change_job"
    states = (State.SCHEDULED, State.READY)
    meant = states
    is_apart = True

    def _change(self, key: uuid.UUID, using: str, by: By) -> bool:
        job = Job.objects.using(using).select_for_update().filter(pk=key).first()
        return job is not None and lifecycle.redirect(key, using, self._columns(job))

    def _columns(self, job: Job) -> dict[str, Any]:
        raise NotImplementedError


class Move(Redirect):
    name = "move"
    label = _("Change queue")
    otherwise = _("is %(state)s: nothing to move")
    asks = _("To which queue:")

    def told(self, value: str) -> Self:
        name = value.strip()
        if not 0 < len(name) <= MAX_NAME or "\0" in name:
            raise ValueError(gettext("Name a queue, in 1 to %(number)s characters.") % {"number": MAX_NAME})
        if (app := celery_app()) is not None:
            calls.known_queue(app, name)
        return _with(self, name, format_lazy(_("moved to {queue}"), queue=name))

    def _columns(self, job: Job) -> dict[str, Any]:
        options = {name: value for name, value in job.options.items() if name not in ("exchange", "routing_key")}
        return {"queue": self.value, "options": options}


class Prioritize(Redirect):
    name = "prioritize"
    label = _("Change priority")
    otherwise = _("is %(state)s: nothing to prioritize")
    asks = _("Priority (0 to 255; whether more is first, the broker decides):")

    def told(self, value: str) -> Self:
        number = value.strip()
        if not (number.isascii() and number.isdecimal() and int(number) <= 255):
            raise ValueError(
                gettext("A priority is a whole number from 0 to 255, and not %(value)r.") % {"value": value}
            )
        return _with(self, str(int(number)), format_lazy(_("given priority {number}"), number=int(number)))

    def _columns(self, job: Job) -> dict[str, Any]:
        priority = int(self.value)
        return {"priority": priority, "rank": calls.rank_of(current_app, priority)}


class Delete(Operation):
    name = "delete"
    label = _("Delete")
    permission = "delete_job"
    participle = _("deleted")
    is_apart = True
    states = ENDED
    meant = ENDED
    otherwise = _("is %(state)s: nothing to delete")

    def _change(self, key: uuid.UUID, using: str, by: By) -> bool:
        if hindrance := self._hindrance(key, using):
            raise Refused(hindrance)
        return history.delete(key, using)

    def _hindrance(self, key: uuid.UUID, using: str) -> str:
        if history.is_kept(key, using):
            return gettext("a marker points at it, so that its result is replayed; prune deletes both when it expires")
        if history.may_come_again(key, using):
            return gettext("its message was another program's, and would run again if it came again; try in a day")
        return ""

    def _noted(self, key: uuid.UUID, using: str, by: By, change: Callable[[uuid.UUID, str, By], bool]) -> bool:
        """Its history goes with it; what stays is the log."""
        done = change(key, using, by)
        if done:
            about = {"action": "deleted", "job": str(key), "by": by.who, "why": by.why}
            logger.info("the job %s was deleted by %s: %s", key, by.who or "somebody", by.why or "-", extra=about)
        return done


def _why(exc: Exception, key: uuid.UUID, using: str) -> str:
    """What stood in the way, in the reader's language."""
    job = Job.objects.using(using).filter(pk=key).first() if isinstance(exc, UniqueTaken) else None
    if job is not None:
        return unique.describe(job, gettext)
    if isinstance(exc, UniqueBusy):
        return gettext("another transaction is about to take its unique key; try again in a moment")
    return str(exc)


def _with(operation: Any, value: str, participle: Any) -> Any:
    told = copy.copy(operation)
    told.value, told.participle = value, participle
    return told


def _because(by: By) -> str:
    return " ".join(filter(None, ["cancelled by hand", by.who and f"by {by.who}", by.why and f"({by.why})"]))


RETRY, CANCEL, RUN, MOVE, PRIORITIZE, DELETE = Retry(), Cancel(), RunNow(), Move(), Prioritize(), Delete()
OPERATIONS: dict[str, Operation] = {each.name: each for each in (RETRY, RUN, CANCEL, MOVE, PRIORITIZE, DELETE)}
