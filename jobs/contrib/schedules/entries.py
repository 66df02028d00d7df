"""The entries of the schedule: what is called again and again, and when.

They come from Celery's own schedule (``beat_schedule``, ``add_periodic_task``), from tasks with ``every=``, and from
django-celery-beat's tables where that is installed.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from celery import Celery
from celery.beat import BeatLazyFunc
from celery.schedules import crontab
from django.apps import apps
from django.db.models import F

from jobs.conf import conf, did_you_mean, is_ours, reads_rows
from jobs.contrib.schedules.ticks import Ticks
from jobs.contrib.stock_calls.sending import calls_are_rows
from jobs.models.values import as_uuid
from jobs.store import databases

#: Headers of a job that a tick made: the entry's name (django-celery-beat's name for the header), and the tick.
NAME, TICK = "periodic_task_name", "schedule_tick"

#: What an entry may hold: as Celery's ``ScheduleEntry``.
KEYS = "name task schedule args kwargs options relative last_run_at total_run_count app".split()

#: The ``repr`` of these types is the same in every process; for values of other types only the type counts.
_STABLE = (datetime.datetime, datetime.date, datetime.time, datetime.timedelta, uuid.UUID)


class Entry:
    """A task that is called again and again.

    Parameters:
        given: what ``beat_schedule`` holds under the name.
        row: django-celery-beat's row, if the entry comes from its tables.

    Raises:
        TypeError, ValueError: the entry is not valid; says why.
    """

    def __init__(self, app: Celery, name: str, given: Mapping[str, Any], row: Any = None) -> None:
        if unknown := [key for key in given if key not in KEYS]:
            cure = "; it belongs into its options" if unknown[0] == "catch_up" else did_you_mean(unknown[0], KEYS)
            raise TypeError(f"it has no key {unknown[0]!r}{cure}")
        if not 0 < len(name) <= 255:
            raise ValueError("its name must have 1 to 255 characters: add_periodic_task(..., name=) gives it one")
        self.app, self.name, self.task, self._row = app, name, str(given["task"]), row
        self.args, self.kwargs = given.get("args") or (), given.get("kwargs") or {}
        if not isinstance(self.args, list | tuple):
            raise TypeError(f"args={self.args!r} must be a list or a tuple: ({self.args!r},) for one argument")
        self.options = dict(given.get("options") or {})
        #: Whether a missed tick is made up for, late.
        self.catch_up: bool = self.options.pop("catch_up", getattr(app.tasks.get(self.task), "catch_up", True))
        if not isinstance(self.catch_up, bool):
            raise TypeError(f"catch_up={self.catch_up!r} must be True or False")
        #: The database of its row, and of its jobs.
        self.using = databases.job_alias(self.options.pop("using", None))
        begins, ends = (None, None) if row is None else (row.start_time, row.expires)
        self.ticks = Ticks(given["schedule"], app, bool(given.get("relative")), begins, ends)
        self.when = str(self.ticks)
        #: Whether it ends with its first job.
        self.is_one_off: bool = row is not None and row.one_off
        self._clocked = getattr(given["schedule"], "clocked_time", None) if self.is_one_off else None
        # An entry whose row was edited, or enabled again, begins anew.
        edited = "" if row is None else f"{row.date_changed:%Y%m%d%H%M%S%f}"
        call = (self.task, self.args, self.kwargs, self.options, self.catch_up)
        #: Differs if the entry differs; its beginning differs if the ticks differ.
        self.definition = f"{edited}{_digest(self.when)} {_digest(call)}"

    def begins(self, now: datetime.datetime) -> datetime.datetime:
        """Ticks after this count, if it is first seen now. A clocked entry's only tick counts also if it is over."""
        return min(now, self._clocked - datetime.timedelta.resolution) if self._clocked else now

    def is_newer_than(self, definition: str) -> bool:
        """Whether it is newer than the definition, whichever worker began first: rows say when they were edited."""
        mine, other = self.definition[:20], definition[:20]
        return self._row is not None and other.isdigit() and mine > other

    def call(self, tick: datetime.datetime | None) -> uuid.UUID | None:
        """Make the job of a tick (None: a person wants it now) in the current transaction; returns its id."""
        headers = {**(self.options.get("headers") or {}), NAME: self.name}
        if tick is not None:
            headers[TICK] = tick.isoformat()
        options = {**self.options, "headers": headers}
        args, kwargs = [_value(each) for each in self.args], {key: _value(each) for key, each in self.kwargs.items()}
        task = self.app.tasks.get(self.task)
        if is_ours(task):
            return as_uuid(task.apply_async(args, kwargs, using=self.using, **options).id)
        # The call of a stock task is a message: a job of ours sends it.
        send = partial(self.app.send_task, self.task) if task is None else task.apply_async
        with calls_are_rows(self.using):
            return as_uuid(send(args, kwargs, **options).id)

    def note_run(self, tick: datetime.datetime, number: int) -> None:
        """Update django-celery-beat's own columns, in the transaction of the ticks."""
        if self._row is None:
            return
        # No signal is sent: other processes need not read all rows again for this.
        rows = _model("PeriodicTask").objects.filter(pk=self._row.pk)
        rows.update(last_run_at=tick, total_run_count=F("total_run_count") + number)
        if self.is_one_off:
            rows.update(enabled=False, total_run_count=0)


def _value(given: Any) -> Any:
    return given() if isinstance(given, BeatLazyFunc) else given


def _digest(value: Any) -> str:
    # The ``repr`` of a value that is computed at the call contains an address, which differs in each process.
    text = json.dumps(
        value, sort_keys=True, default=lambda odd: repr(odd) if isinstance(odd, _STABLE) else str(type(odd))
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def gather(app: Celery, asks_tables: bool = True) -> tuple[dict[str, Entry], list[str]]:
    """The entries by name, and a sentence for each entry that is left out, saying what is wrong with it."""
    found: dict[str, Entry] = {}
    wrong: list[str] = []
    if conf().SCHEDULES is None or app.conf.task_always_eager:
        return found, wrong
    rows: Any = ()
    if asks_tables and has_tables():
        rows = _model("PeriodicTask").objects.select_related("interval", "crontab", "solar", "clocked")
    for name, given, row in [*_in_code(app), *((row.name, {}, row) for row in rows)]:
        if row is not None:
            # If the code has an entry of the same name, the row counts, even if it is disabled.
            found.pop(name, None)
            if not row.enabled:
                continue
        try:
            found[name] = Entry(app, name, given if row is None else _given_by(row), row)
        except Exception as exc:
            wrong.append(f"{name!r}: {exc!r}" if isinstance(exc, KeyError) else f"{name!r}: {exc}")
    return found, wrong


def _in_code(app: Celery) -> Iterator[tuple[str, dict[str, Any], None]]:
    """The entries that the code declares. A later one of the same name wins."""
    for task in list(app.tasks.values()):
        if (every := getattr(task, "every", None)) is not None and getattr(task, "is_transactional", False):
            yield task.name, {"task": task.name, "schedule": every}, None
    is_kept = app.conf.result_backend not in (None, "", "disabled", "disabled://") and not reads_rows(app)
    if is_kept and app.conf.result_expires and not app.backend.supports_autoexpire:
        # As beat does: results in another backend have to be deleted, too.
        name = "celery.backend_cleanup"
        yield name, {"task": name, "schedule": crontab("0", "4", "*"), "options": {"expires": 12 * 3600}}, None
    for name, given in (app.conf.beat_schedule or {}).items():
        yield str(name), dict(given), None


# The tables of django-celery-beat


def has_tables() -> bool:
    """Whether these tables are a source of the schedule, too."""
    return conf().SCHEDULES == "all" and apps.is_installed("django_celery_beat")


def last_change() -> datetime.datetime | None:
    """When a row was last edited, made or deleted."""
    changed: datetime.datetime | None = _model("PeriodicTasks").last_change()
    return changed


def _given_by(row: Any) -> dict[str, Any]:
    """A row of ``PeriodicTask`` in the form of ``beat_schedule``."""
    names = ("queue", "exchange", "routing_key", "priority")
    options = {name: value for name in names if (value := getattr(row, name)) is not None}
    # The row's ``expires`` ends the entry; the expiry of its jobs is in ``expire_seconds``.
    if row.expire_seconds is not None:
        options["expires"] = row.expire_seconds
    if headers := json.loads(row.headers or "{}"):
        options["headers"] = headers
    args, kwargs = json.loads(row.args or "[]"), json.loads(row.kwargs or "{}")
    return {"task": row.task, "schedule": row.schedule, "args": args, "kwargs": kwargs, "options": options}


def _model(name: str) -> Any:
    return apps.get_model("django_celery_beat", name)


def uncallable(app: Celery) -> Iterator[str]:
    """A sentence for each entry whose task is not known here, or does not take the entry's arguments."""
    for name, entry in gather(app, asks_tables=False)[0].items():
        task = app.tasks.get(entry.task)
        if task is None:
            near = did_you_mean(entry.task, app.tasks).rstrip(".")
            yield f"{name!r}: no task of this project is called {entry.task!r}{near}"
        elif task.typing and (takes := getattr(task, "__header__", None)) is not None:
            try:
                takes(*entry.args, **entry.kwargs)
            except TypeError as exc:
                yield f"{name!r}: {exc}"
