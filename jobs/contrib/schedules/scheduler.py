"""Run the schedule: each tick of an entry is decided once, in the transaction that makes its job.

A row for each entry holds the last tick that was decided. A worker decides the next tick with the row locked, and moves
the row on in the transaction that inserts the job. Only the database's clock counts, not those of the machines.
"""

import datetime
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from django.db import DataError, Error, IntegrityError, transaction
from django.db.models import F
from django.db.models.functions import Now

from jobs import store
from jobs.conf import celery_app
from jobs.conf.logs import logger
from jobs.conf.syncpoints import reach
from jobs.contrib.schedules import entries
from jobs.contrib.schedules.entries import Entry
from jobs.contrib.schedules.models import Schedule
from jobs.lifecycle.transitions import now_plus
from jobs.lifecycle.unique import UniqueBusy
from jobs.lifecycle.wakeups import wakeup
from jobs.models.values import scrub
from jobs.store import databases
from jobs.store.databases import SAME, STARTED

LOOK, AGAIN = 2.0, 0.2  #: Seconds between two looks: while nothing is due, and while another process decides a tick.

#: Seconds between two notes that an entry is defined; seconds without a note after which it counts as not defined; and
#: seconds after which it begins anew if it comes back.
NOTED, GONE, LEFT = 20.0, 90.0, 86400.0

STANDS_STILL = 10.0  #: Seconds after which a process that hangs while it decides a tick loses it to other processes.

BEFORE = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Schedules:
    """Makes jobs of ticks. Any number of processes may do it at the same time, and each tick is decided once.

    Parameters:
        since: when this process loaded the code, on the machine's monotonic clock.
    """

    def __init__(self, app: Any = None, since: float = STARTED) -> None:
        self._app, self._since = app, since
        self._entries: dict[str, Entry] | None = None
        self._changed: datetime.datetime | None = None  #: When django-celery-beat's tables last changed.
        #: For each database, by its clock: when this last noted the defined entries, and when this worker began.
        self._noted: dict[str, datetime.datetime] = {}
        self._began: dict[str, datetime.datetime] = {}
        self._wrong: dict[str, str] = {}  #: The exception that an entry's schedule raised last, by the entry's name.
        self.pause = LOOK  #: Seconds until the next look.

    def run_once(self) -> dict[str, int]:
        done = {"ticks": 0, "missed": 0}
        found = self._read()
        self.pause = LOOK if found or entries.has_tables() else math.inf
        databases.everywhere(partial(self._run, found=found, done=done), {entry.using for entry in found.values()})
        return done

    def _read(self) -> dict[str, Entry]:
        changed = entries.last_change() if entries.has_tables() else None
        if self._entries is None or changed != self._changed:
            app = self._app or celery_app()
            self._entries, wrong = entries.gather(app) if app is not None else ({}, [])
            self._changed = changed
            for text in wrong:
                logger.error("an entry of the schedule is left out: %s", text, extra={"action": "schedule_wrong"})
        return self._entries

    def _run(self, using: str, found: dict[str, Entry], done: dict[str, int]) -> None:
        rows: dict[str, Any] = {row.name: row for row in Schedule.objects.using(using).annotate(now=Now())}
        now = next((row.now for row in rows.values()), None) or databases.clock(using)
        # Computed once: a second computation would differ by the time that the query took.
        began = self._began.setdefault(using, databases.began(now, self._since))
        in_force = {}
        for name, entry in found.items():
            if entry.using == using:
                with self._alone(entry):
                    if name not in rows or rows[name].definition != entry.definition:
                        rows[name] = define(entry, rows.get(name), began, now)
                    if rows[name].definition == entry.definition:
                        in_force[name] = entry
        if now - self._noted.get(using, BEFORE) > datetime.timedelta(seconds=NOTED):
            self._noted[using] = now
            note_defined(using, in_force)
        failure: Error | None = None
        for name, entry in in_force.items():
            row = rows[name]
            if row.next_tick is None or row.paused_at is not None:
                continue
            if row.next_tick > now:
                self.pause = min(self.pause, (row.next_tick - now).total_seconds())
                continue
            decided: tuple[int, int] | None = (0, 0)
            try:
                with self._alone(entry):
                    decided = decide(entry)
            except (Error, UniqueBusy) as exc:
                # The other entries get their ticks nevertheless.
                decided, failure = None, exc if isinstance(exc, Error) else failure
            if decided is None:
                # Another process decides the tick, and may hang.
                self.pause = min(self.pause, AGAIN)
            elif any(decided):
                self.pause = 0.0
                done["ticks"] += decided[0]
                done["missed"] += decided[1]
        if failure is not None:
            raise failure

    @contextmanager
    def _alone(self, entry: Entry) -> Iterator[None]:
        """Log an exception of the entry's schedule, so that the other entries get their ticks."""
        try:
            yield
        except (Error, UniqueBusy):
            raise
        except Exception as exc:
            if repr(exc) != self._wrong.get(entry.name):
                self._wrong[entry.name] = repr(exc)
                text = "no tick of the schedule %s can be computed"
                logger.error(text, entry.name, exc_info=exc, extra=_about("schedule_wrong", entry))


def note_defined(using: str, names: Iterable[str]) -> None:
    """Note that the entries are defined here. Entries that no worker defined for long begin anew if they come back."""
    rows = Schedule.objects.using(using)
    rows.filter(pk__in=names, seen_at__lt=now_plus(-NOTED / 2)).update(seen_at=Now())
    rows.filter(seen_at__lt=now_plus(-LEFT)).exclude(definition="").update(definition="", next_tick=None)


def define(entry: Entry, row: Any, began: datetime.datetime, now: datetime.datetime) -> Schedule:
    """Bring the row of an entry (None: there is none yet) in line with it, unless a newer definition is in force.

    Parameters:
        began: when this worker began, by the database's clock.
    """
    rows = Schedule.objects.using(entry.using)
    says: dict[str, Any] = {"task": scrub(entry.task, 255), "timing": scrub(entry.when, 1000)}
    says |= {"definition": entry.definition, "defined_at": began, "seen_at": now}
    if row is None:
        begins = {"last_tick": entry.begins(now), "next_tick": entry.ticks.after(entry.begins(now))}
        return rows.get_or_create(pk=entry.name, defaults={**says, **begins})[0]
    is_stale = row.seen_at < now - datetime.timedelta(seconds=GONE)
    if row.definition and row.defined_at > began + SAME and not is_stale and not entry.is_newer_than(row.definition):
        # A newer worker defined the entry. This worker makes no jobs of the old definition.
        return row
    if row.next_tick is None or row.definition.partition(" ")[0] != entry.definition.partition(" ")[0]:
        # The entry begins now: earlier ticks of the new times do not count as missed, nor do those of a pause.
        due = entry.ticks.due(row.last_tick, entry.begins(now) if row.definition else now)
        says |= {"last_tick": due.last or row.last_tick, "next_tick": due.next}
    # Race with another worker, or with a tick: the process that comes second looks again.
    if rows.filter(pk=row.pk, definition=row.definition, last_tick=row.last_tick).update(**says):
        for name, value in says.items():
            setattr(row, name, value)
    return row


def decide(entry: Entry, at: datetime.datetime | None = None) -> tuple[int, int] | None:
    """Make the jobs of the ticks that are due, in one transaction; returns how many, and how many were missed.

    None: there is nothing to decide, or another process decides at the moment.

    Parameters:
        at: the time, instead of the database's clock.
    """
    using = entry.using
    with transaction.atomic(using=using):
        store.of(using).end_if_idle(STANDS_STILL)
        found: Any = Schedule.objects.using(using).filter(pk=entry.name, definition=entry.definition)
        row = databases.free(found).annotate(now=Now()).first()
        if row is None or row.paused_at is not None or row.next_tick is None or row.next_tick > (at or row.now):
            return None
        due = entry.ticks.due(row.last_tick, at or row.now)
        ticks = due.in_time or ([due.last_missed] if entry.catch_up and due.last_missed else [])
        ticks = ticks[:1] if entry.is_one_off else ticks
        missed, missed_at = due.missed, due.last_missed
        says: dict[str, Any] = {"last_tick": due.last or row.last_tick, "next_tick": due.next, "error": ""}
        reach("before_tick")
        try:
            with transaction.atomic(using=using):
                made = [entry.call(tick) for tick in ticks]
        except Exception as exc:
            if isinstance(exc, Error | UniqueBusy) and not isinstance(exc, DataError | IntegrityError):
                raise
            # Another try would fail as well: these ticks are lost, and the entry goes on with the next tick.
            logger.error("the schedule cannot call %s", entry.name, exc_info=exc, extra=_about("schedule_error", entry))
            says["error"] = scrub(f"{type(exc).__name__}: {exc}", 1000)
            missed, missed_at, ticks = missed + len(due.in_time), due.last, []
        if ticks:
            says |= {"last_run": ticks[-1], "last_job": made[-1]}
            entry.note_run(ticks[-1], len(ticks))
            if entry.is_one_off:
                says["next_tick"] = None
        if missed:
            says |= {"missed": F("missed") + missed, "missed_at": missed_at}
        reach("after_tick")
        # Race on databases that cannot lock rows: the condition decides which process was first.
        if not found.filter(last_tick=row.last_tick).update(**says):
            transaction.set_rollback(True, using=using)
            return None
    if missed:
        text = "the schedule %s missed %s ticks%s"
        late = ", and makes up for the last one" if ticks and not due.in_time else ""
        logger.warning(text, entry.name, missed, late, extra=_about("schedule_missed", entry, count=missed))
    if ticks:
        wakeup.send()
    return len(ticks), missed


def _about(action: str, entry: Entry, **more: Any) -> dict[str, Any]:
    return {"action": action, "schedule": entry.name, "task": entry.task, **more}
