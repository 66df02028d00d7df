"""A rule of the promise: one sentence, and the query for what breaks it.

There are three kinds.

:class:`Shape`
    is about the columns of one row. It holds in every committed state, at every moment.
:class:`Rule` without a bound
    compares rows. It holds at every moment, too: it is broken, or it is not.
    What it counts as ``waiting`` waits for a person, and breaks nothing.
:class:`Rule` with a bound
    is about what a worker has to put right. Rows that wait for that are *recovering*, and *violations* only when
    they have waited for longer than the bound while a worker was there to do it.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.db import OperationalError, connections
from django.db.models import DurationField, ExpressionWrapper, F, Q, QuerySet
from django.db.models.functions import Now

from jobs import databases
from jobs.census import MOST, running_by_node, silence
from jobs.conf import conf
from jobs.models import Node, State

LIVE = (State.SCHEDULED, State.READY, State.RUNNING)

#: Seconds that a busy machine may take on top of any bound.
SLACK = 10.0

#: Milliseconds to wait for SQLite's write lock; the short transactions of maintenance take less.
LOCK_WAIT = 500


class Rows:
    """What a query of a rule found: rows of one database, or just keys."""

    def __init__(self, *querysets: QuerySet[Any], version: tuple[str, ...] = (), keys: Iterable[Hashable] = ()) -> None:
        """
        Parameters:
            querysets: in the order in which maintenance comes to them; they have no row in common.
            version: the columns that change when somebody does something about a row.
            keys: instead of querysets, where the rows are not in a database of Django's.
        """
        self._querysets = querysets
        self._version = version
        self._keys = list(keys)

    def count(self) -> int:
        """Nobody counts beyond :data:`MOST`."""
        return len(self._keys) + sum(rows[:MOST].count() for rows in self._querysets)

    def first(self, limit: int) -> dict[Hashable, tuple[Any, ...]]:
        """The first rows: their keys, and their version."""
        found: dict[Hashable, tuple[Any, ...]] = dict.fromkeys(self._keys[:limit], ())
        for rows in self._querysets:
            for key, *version in rows.values_list("pk", *self._version)[: limit - len(found)]:
                found[key] = tuple(version)
        return found

    def among(self, keys: Iterable[Hashable]) -> Rows:
        keys = list(keys)
        return Rows(
            *(rows.filter(pk__in=keys) for rows in self._querysets),
            version=self._version,
            keys=(key for key in self._keys if key in keys),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What holds for the columns of each job. All shapes are looked at in one pass over the rows."""

    id: str
    #: A sentence, lazily translated.
    says: Any
    broken: Q
    #: The states of the rows it is about; None is all those that ended (or are in no known state).
    states: tuple[State | None, ...] = (*LIVE, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What holds between rows."""

    id: str
    #: A sentence, lazily translated.
    says: Any
    #: The rows of a database that break it; with a bound, those that have waited for longer.
    broken: Callable[[View, str], Rows]
    #: All rows that wait to be put right; with a bound, the broken ones are among them.
    waiting: Callable[[View, str], Rows] | None = None
    #: How long somebody may take to put a row right, in seconds.
    bound: Callable[[], float] | None = None
    #: About nodes and beats, which live in the first of the databases.
    at_home: bool = False

    def databases(self) -> tuple[str, ...]:
        return (databases.home(),) if self.at_home else tuple(conf().DATABASES)


def mended(*, late: Callable[[View, str, float], Rows], quiet: Callable[[], float] = float, **more: Any) -> Rule:
    """A rule with a bound.

    Parameters:
        late: the rows that have waited for so many seconds.
        quiet: for so many seconds nobody speaks of them.
    """
    return Rule(
        broken=lambda view, using: late(view, using, more["bound"]()),
        waiting=lambda view, using: late(view, using, quiet()),
        **more,
    )


class View:
    """What all rules look at together: which workers are there."""

    def __init__(self) -> None:
        # Race with a node that registers itself: first its row, then its beat. So it is read the other way round.
        beats = silence()
        age = ExpressionWrapper(Now() - F("started_at"), output_field=DurationField())
        alive = Node.objects.using(databases.home()).filter(dead_at=None).annotate(age=age)
        ages: dict[uuid.UUID, float] = {
            key: age.total_seconds()
            for key, age in alive.values_list("pk", "age")
            if isinstance(age, datetime.timedelta)
        }
        #: Seconds since the last beat of each node that nobody has declared dead.
        self.silence = {key: beats.get(key, ages[key]) for key in ages}
        self.beats = beats
        #: Those that beat.
        self.working = [key for key, seconds in self.silence.items() if seconds < conf().DEAD_AFTER and key in beats]
        #: For how many seconds there has been a worker.
        self.worked_for = max((ages[key] for key in self.working), default=0.0)

    @cached_property
    def served(self) -> set[str]:
        """The queues that a worker consumes which has a free process."""
        running = running_by_node()
        nodes = Node.objects.using(databases.home()).filter(pk__in=self.working, stopping_at=None)
        found = nodes.values_list("pk", "concurrency", "queues")
        return {queue for key, processes, queues in found if running[key] < (processes or 0) for queue in queues}

    @staticmethod
    def is_writable(using: str) -> bool:
        """SQLite has one write lock, which a body holds as long as it runs: nobody else can do anything meanwhile."""
        connection = connections[using]
        if connection.vendor != "sqlite" or connection.in_atomic_block:
            return True
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout")
            (timeout,) = cursor.fetchone()
            try:
                cursor.execute(f"PRAGMA busy_timeout = {LOCK_WAIT}")
                cursor.execute("BEGIN IMMEDIATE")
                cursor.execute("ROLLBACK")
            except OperationalError:
                return False
            finally:
                cursor.execute(f"PRAGMA busy_timeout = {timeout}")
        return True

    def silent(self, seconds: float) -> list[uuid.UUID]:
        """The nodes that nobody has declared dead, and that have not beaten for so long."""
        return [key for key, silence in self.silence.items() if silence > seconds]
