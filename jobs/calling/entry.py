"""An entry of the schedule: a task that is called again and again."""

from __future__ import annotations

import datetime
import hashlib
import json
import uuid
from collections.abc import Mapping
from functools import partial
from typing import Any

from celery import Celery
from celery.beat import BeatLazyFunc

from jobs.calling import followups
from jobs.calling.ticks import Ticks
from jobs.conf import did_you_mean
from jobs.database import databases
from jobs.models.values import as_uuid

#: Headers of a job that a tick made: the entry's name, which django-celery-beat calls so, and the tick.
NAME, TICK = "periodic_task_name", "schedule_tick"

#: What an entry may hold: as Celery's ``ScheduleEntry``.
KEYS = "name task schedule args kwargs options relative last_run_at total_run_count app".split()


class Entry:
    """A task that is called again and again.

    Parameters:
        given: what ``beat_schedule`` holds under the name.
        ticks: when; if it is not given, as ``given["schedule"]`` says.

    Raises:
        TypeError, ValueError: it cannot be kept; says why.
    """

    #: It ends with its first job.
    is_one_off = False

    def __init__(self, app: Celery, name: str, given: Mapping[str, Any], ticks: Ticks | None = None) -> None:
        unknown = [key for key in given if key not in KEYS]
        if unknown:
            cure = "; it belongs into its options" if unknown[0] == "catch_up" else did_you_mean(unknown[0], KEYS)
            raise TypeError(f"it has no key {unknown[0]!r}{cure}")
        if not 0 < len(name) <= 255:
            raise ValueError("its name must have 1 to 255 characters: add_periodic_task(..., name=) gives it one")
        self.app, self.name, self.task = app, name, str(given["task"])
        self.args, self.kwargs = given.get("args") or (), given.get("kwargs") or {}
        options = dict(given.get("options") or {})
        #: Whether a tick that was missed is made up for, late.
        self.catch_up: bool = options.pop("catch_up", getattr(app.tasks.get(self.task), "catch_up", True))
        if not isinstance(self.catch_up, bool):
            raise TypeError(f"catch_up={self.catch_up!r} must be True or False")
        #: The database of its row, and of its jobs.
        self.using = databases.job_alias(options.pop("using", None))
        self.options = options
        self.ticks = ticks or Ticks(given["schedule"], app, bool(given.get("relative")))
        self.when = str(self.ticks)
        call = (self.task, self.args, self.kwargs, self.options, self.catch_up)
        # At once: what cannot be told from another one is no entry.
        self._digests = f"{_digest(self.when)} {_digest(call)}"

    @property
    def definition(self) -> str:
        """Differs if the entry does; its beginning differs if its ticks do."""
        return self._digests

    def is_newer_than(self, definition: str) -> bool:
        """Whether it is the newer one of the two, whichever worker began first."""
        return False

    def call(self, tick: datetime.datetime | None) -> uuid.UUID | None:
        """Make the job of a tick (None: somebody wants it now) in the current transaction; returns its id."""
        headers = {**(self.options.get("headers") or {}), NAME: self.name}
        if tick is not None:
            headers[TICK] = tick.isoformat()
        options = {**self.options, "headers": headers}
        args, kwargs = [_value(each) for each in self.args], {key: _value(each) for key, each in self.kwargs.items()}
        task = self.app.tasks.get(self.task)
        if getattr(task, "is_transactional", False) and not task.is_stock():
            return as_uuid(task.apply_async(args, kwargs, using=self.using, **options).id)
        # A message: a job of ours sends it.
        send = partial(self.app.send_task, self.task) if task is None else task.apply_async
        with followups.calls_are_rows(self.using):
            return as_uuid(send(args, kwargs, **options).id)

    def note_run(self, tick: datetime.datetime, number: int) -> None:
        """In the transaction of the ticks: for whoever else keeps account of the entry."""


def _value(given: Any) -> Any:
    return given() if isinstance(given, BeatLazyFunc) else given


def _digest(value: Any) -> str:
    # What is made at the call has another address in each process.
    text = json.dumps(
        value, sort_keys=True, default=lambda odd: repr(odd) if isinstance(odd, _STABLE) else str(type(odd))
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_STABLE = (datetime.datetime, datetime.date, datetime.time, datetime.timedelta, uuid.UUID)
