"""Delete expired markers, and jobs that ended long ago, in batches; no job whose result other jobs may replay."""

import math
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django.db import Error, transaction
from django.db.models import BooleanField, Exists, ExpressionWrapper, OuterRef, Q, QuerySet, TextField
from django.db.models.expressions import RawSQL
from django.db.models.functions import Cast, Now

from jobs import extensions, store
from jobs.conf import conf
from jobs.conf.logs import logger
from jobs.lifecycle.transitions import now_plus
from jobs.maintenance import give_way
from jobs.models import ENDED, Job, Marker, Node, State
from jobs.store import databases
from jobs.store.postgresql import PostgreSQL

NODE_RETENTION = 7 * 86400.0  #: Seconds for which a dead node is kept, for people to see.

#: Seconds between the starts of two walks through the whole history. In between, prune looks only at jobs that have
#: become old since: most older jobs are kept for their marker.
FULL_WALK = 3600.0

#: How many batches (``BATCH``) of old rows one statement deletes on PostgreSQL: as many as take 100 ms, because the
#: threads of a supervisor wait for each other.
OLD_BATCHES = 10

#: How far a walk through history has come: ``finished_at`` as the database writes it, and the id. SQLite compares
#: moments as texts, and Django would write the same moment as a different text.
Position = tuple[str, uuid.UUID]


class Prune:
    """Deletes jobs that ended long ago. If there are several workers, only the oldest does it.

    Parameters:
        node: this process's own node. Without one it is no worker: a person runs it, and it always prunes.
    """

    def __init__(self, node: Callable[[], uuid.UUID] | None = None) -> None:
        self._node = node
        #: For each database, how far the walk has come, and when it began.
        self._walks: dict[str, tuple[Position | None, float]] = {}
        #: Whether the last round ended because of its budget: there is more to delete.
        self.is_behind = False

    def run_once(self, budget: float = math.inf) -> dict[str, int]:
        """Delete batch after batch; stop after ``budget`` seconds, and continue from there the next time."""
        self.is_behind = False
        done = Counter({"jobs": 0, "markers": 0, "nodes": 0})
        databases.everywhere(partial(self._run, budget=budget, done=done))
        if done["jobs"]:
            logger.info("pruned %s jobs", done["jobs"], extra={"action": "pruned", "count": done["jobs"]})
        return dict(done)

    def _run(self, using: str, budget: float, done: Counter[str]) -> None:
        if not is_eldest(self._node, using):
            return
        began = time.monotonic()
        # Markers come first, and have half of the time: jobs are kept as long as their markers.
        while time.monotonic() < began + budget / 2 and (count := _delete_markers(using, batch(using))):
            done["markers"] += count
            extensions.instead(give_way)()
        while (deleted := self._step(using)) is not None:
            done["jobs"] += deleted
            if time.monotonic() >= began + budget:
                break
            extensions.instead(give_way)()
        for prune in extensions.through("prune"):
            done.update(prune(using, max(0.0, began + budget - time.monotonic())) or {})
        old = Node.objects.using(using).filter(dead_at__lt=now_plus(-NODE_RETENTION))
        if (named := _named(using)) is not None:
            done["nodes"] += old.exclude(pk__in=named)._raw_delete(using)
        self.is_behind |= time.monotonic() >= began + budget

    def _step(self, using: str) -> int | None:
        """Delete the next jobs. Returns how many, or None at the end of history."""
        now = time.monotonic()
        place, began = self._walks.get(using, (None, now))
        found = list(walk(using, place, batch(using)).values_list("pk", "place", "is_over"))
        if not found:
            # At the end of history: continue with jobs that become old, until it is time for a new walk.
            self._walks[using] = (None, now) if now - began > FULL_WALK else (place, began)
            return None
        keys = [key for key, _, is_over in found if is_over]
        deleted = delete_old(keys, using) if keys else 0
        last, at, _ = found[-1]
        self._walks[using] = (at, last), began
        return deleted


def expired(using: str) -> QuerySet[Marker]:
    return Marker.objects.using(using).filter(expires_at__lte=Now())


def _delete_markers(using: str, limit: int) -> int:
    """Delete one batch. Race: a body that takes over an expired marker has locked it; prune does not wait for it."""
    with transaction.atomic(using=using):
        keys = list(databases.free(expired(using)).values_list("pk", flat=True)[:limit])
        return Marker.objects.using(using).filter(store.of(using).among("pk", keys))._raw_delete(using) if keys else 0


def is_eldest(node: Callable[[], uuid.UUID] | None, using: str) -> bool:
    """Whether the node is the oldest live one, which does the work for all. With None a person wants it done: True."""
    if node is None:
        return True
    living = Node.objects.using(using).filter(dead_at=None).order_by("started_at", "pk")
    return bool(living.values_list("pk", flat=True).first() == node())


def batch(using: str) -> int:
    """How many rows one statement deletes."""
    return conf().BATCH * (OLD_BATCHES if isinstance(store.of(using), PostgreSQL) else 1)


def _named(using: str) -> set[uuid.UUID] | None:
    """The nodes that running jobs name (at home: in all databases). None: a database is away, and may name any node.

    Only home tells the other databases which nodes are dead.
    """
    found: set[uuid.UUID] = set()
    for alias in conf().DATABASES if using == databases.home() else [using]:
        running = Job.objects.using(alias).filter(state=State.RUNNING)
        try:
            found.update(node for node in running.values_list("node", flat=True).distinct() if node is not None)
        except Error as exc:
            databases.note_away(exc, alias)
            return None
    return found


def walk(using: str, behind: Position | None, limit: int) -> Any:
    """The next ended jobs, oldest first, with ``place`` and ``is_over``; also jobs that are still to be kept."""
    rows, ages = Job.objects.using(using), retentions(using).values()
    rows = rows.filter(finished_at__lt=now_plus(-min(ages))) if ages else rows.none()
    if behind is not None:
        at = RawSQL("%s", [behind[0]])
        rows = rows.filter(Q(finished_at__gt=at) | Q(pk__gt=behind[1]), finished_at__gte=at)
    return rows.order_by("finished_at", "pk").annotate(
        place=Cast("finished_at", TextField()), is_over=ExpressionWrapper(is_over(using), BooleanField())
    )[:limit]


def retentions(using: str) -> dict[tuple[State, ...], float]:
    """For how many seconds ended jobs are kept; states that are kept for ever are left out."""
    age = conf().RETENTION
    if age is not None and age >= 3 * 86400.0 and store.of(using).is_divided:
        # All jobs of a day are deleted together. Jobs that are left are deleted row by row a day later.
        age += 86400.0
    every = {(State.SUCCEEDED, State.CANCELLED): age, (State.FAILED,): conf().RETENTION_FAILED}
    return {states: age for states, age in every.items() if age is not None}


def _old(using: str) -> Q:
    parts = (Q(state__in=states, finished_at__lt=now_plus(-age)) for states, age in retentions(using).items())
    return Q(*parts, pk__in=(), _connector=Q.OR)


def is_over(using: str) -> Any:
    """The condition that a job's retention is over, and no marker points at its result.

    Extensions are asked only about the few jobs to be deleted: in a walk PostgreSQL would read the whole table.
    """
    # Compare the marker's ``job``: the row of an adopted job has no ``marker_key``.
    return _old(using) & ~Exists(Marker.objects.using(using).filter(job=OuterRef("pk")))


def delete_old(keys: Sequence[uuid.UUID], using: str) -> int:
    """Delete the jobs that are old enough. Race with a replay: a row that another transaction has locked is left."""
    with transaction.atomic(using=using):
        old = Job.objects.filter(_old(using), store.of(using).among("pk", keys))
        return _delete(databases.free(unneeded(old, using)), using)


def delete(keys: Sequence[uuid.UUID], using: str) -> int:
    """Delete those of the jobs that have ended (a replay may have been faster), and that no extension keeps."""
    over = unneeded(Job.objects.filter(store.of(using).among("pk", keys), state__in=ENDED), using)
    return databases.again_if_moved(using, lambda: _delete(over.select_for_update(), using))


def unneeded(jobs: QuerySet[Job], using: str) -> QuerySet[Job]:
    """Those of the jobs, in this database, that no extension keeps."""
    jobs = jobs.using(using)
    for keep, _ in extensions.through("needed"):
        jobs = jobs.filter(~keep(using))
    return jobs


def _delete(locked: QuerySet[Job], using: str) -> int:
    # Delete by ids only: for a DELETE with a subquery MySQL reads, and locks, the whole table.
    if not (ids := list(locked.values_list("pk", flat=True))):
        return 0
    among = partial(store.of(using).among, ids=ids)
    over = Job.objects.using(using).filter(among("pk"))
    for tell in extensions.through("deleting"):
        tell(over, using, among)
    deleted: int = over._raw_delete(using)
    return deleted
