"""The rules of the promise: a sentence for each, and the query for rows that break it. There are three kinds.

:data:`SHAPES`
    are about the columns of one row. They hold in every committed state, at every moment.
A rule without a bound
    compares rows. It holds at every moment, too. Rows that it counts as waiting wait for a person, and are no error.
A rule with a bound
is about rows that a worker has to put right. While they wait for that they are *recovering*. They are *violations*
only when they have waited for longer than the bound while there was a worker to do it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from django.db import connections
from django.db.models import BigIntegerField, Count, Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Cast, Now
from django.utils.translation import gettext_lazy as _

from jobs import store
from jobs.conf import conf
from jobs.contrib.inspection.counts import MOST, in_line, late_after, paused, silence, workers
from jobs.contrib.operations.selection import newest
from jobs.contrib.operator.store import Head, heads, running_by_node
from jobs.contrib.verify.store import constraints
from jobs.lifecycle.transitions import now_plus
from jobs.maintenance.clock import LONGEST_TICK
from jobs.models import LIVE, UNSUCCESSFUL, Cancellation, Job, Marker, Node, State, tables
from jobs.store import databases

HISTORY = 20_000  #: How many of the last ended jobs are read, unless all are asked for: it takes 100 ms.
SLACK = 10.0  #: Seconds that a busy machine may take on top of any bound.

_LIVE, _FAILED = Q(state__in=LIVE), Q(state__in=UNSUCCESSFUL)
_RUNNING, _SUCCEEDED = Q(state=State.RUNNING), Q(state=State.SUCCEEDED)
_UNCLAIMED = Q(lease__lt=1) | Q(token=None) | Q(node_id=None) | Q(started_at=None)


def _big(name: str) -> Cast:
    """Three of the largest numbers of a column are no number of its type."""
    return Cast(name, BigIntegerField())


_NEGATIVE = Q(retries__lt=0) | Q(crashes__lt=0) | Q(node_losses__lt=0) | Q(snoozes__lt=0)

#: A sentence, lazily translated, and the condition of rows that break it. Most of them are also CHECK constraints, but
#: these may have been dropped.
SHAPES: dict[str, tuple[Any, Q]] = {
    "state-known": (_("a job is in one of the six states"), ~Q(state__in=State.values)),
    "live-not-finished": (_("a job that has not ended has no time of its end"), _LIVE & Q(finished_at__isnull=False)),
    "ended-finished": (_("a job that ended has the time of its end"), ~_LIVE & Q(finished_at=None)),
    "failure-explained": (_("a job that failed or was cancelled says why"), _FAILED & Q(error__isnull=True)),
    "success-without-error": (_("a job that succeeded has no error"), _SUCCEEDED & Q(error__isnull=False)),
    "success-claimed": (
        _("a job that succeeded was claimed: it has a lease, a token, a node and a start"),
        _SUCCEEDED & _UNCLAIMED,
    ),
    "running-claimed": (_("a running job has a lease, a token, a node and a start"), _RUNNING & _UNCLAIMED),
    "counts-add-up": (
        _("no count is negative, and each crash, loss and snooze had a claim of its own"),
        # Retries do not count here: a job made from another program's message brings its own number of retries.
        _NEGATIVE | Q(lease__lt=_big("crashes") + _big("node_losses") + _big("snoozes")),
    ),
    "losses-explained": (
        _("each job that crashed or lost its worker has an error that says so"),
        (Q(crashes__gt=0) | Q(node_losses__gt=0)) & Q(errors__isnull=True),
    ),
}


class View:
    """The state that all rules share: which workers there are."""

    def __init__(self, everything: bool = False) -> None:
        self.everything = everything
        self.workers = workers()  #: Workers that are not declared dead.
        self.working = [worker for worker in self.workers if worker.is_alive]  #: Workers that beat.
        #: For how many seconds there has been a worker.
        self.worked_for = max((worker.age.total_seconds() for worker in self.working), default=0.0)

    @cached_property
    def served(self) -> set[str]:
        """The queues that a worker with a free process consumes."""
        running = running_by_node()
        free = [each for each in self.working if each.takes_jobs and running[each.pk] < (each.concurrency or 0)]
        return {queue for worker in free for queue in worker.queues}

    def silent(self, seconds: float) -> list[uuid.UUID]:
        """The nodes that are not declared dead, and have been silent for this long; a short moment does not count."""
        seconds = max(seconds, conf().DEAD_AFTER / 2)
        return [worker.pk for worker in self.workers if min(worker.silence, worker.age.total_seconds()) > seconds]


#: The result of a search: querysets without common rows, in the order in which maintenance handles them; or, if the
#: rule is not about rows, lists of keys (each in a tuple).
Rows = list[Any]


@dataclass(slots=True)
class Rule:
    """A rule about rows. It decorates the search for rows that break it, and so becomes one of :data:`RULES`."""

    id: str
    says: Any  #: A sentence, lazily translated.
    within: str = ""  #: What puts such a row right (see :meth:`bound`); empty: the rule is broken at once.
    #: The search for all waiting rows, if it differs from ``broken`` without a bound.
    waiting: Callable[[Search], Rows] | None = None
    at_home: bool = False  #: About nodes and beats, which live in the first of the databases.
    broken: Callable[[Search], Rows] = field(init=False)

    def __call__(self, broken: Callable[[Search], Rows]) -> Callable[[Search], Rows]:
        self.broken = broken
        RULES.append(self)
        return broken

    def bound(self) -> float:
        """How many seconds it may take until a row is put right.

        ``rescue``: from the moment when a node is declared dead until its jobs are given back. ``death``: the same from
        its last beat. ``poll``: from the moment at which a worker should do something until it does.
        """
        beat, round = conf().HEARTBEAT, len(conf().DATABASES) * LONGEST_TICK
        takes = {"rescue": 2 * beat, "death": conf().DEAD_AFTER + 3 * beat, "poll": conf().POLL_INTERVAL + 3 * round}
        return takes[self.within] + SLACK if self.within else 0.0


RULES: list[Rule] = []  #: The rules, in the order of the report.

#: Functions of extensions: which of the ready jobs of a queue are certainly not held back.
NOT_HELD: list[Callable[[str, QuerySet[Job]], QuerySet[Job]]] = []


class Search:
    """Searches one database for rows that break a rule; under a bound, for rows that waited for this many seconds."""

    def __init__(self, view: View, using: str, seconds: float) -> None:
        self.view, self.using, self.seconds, self.since = view, using, seconds, now_plus(-seconds)
        self.jobs, self.nodes = Job.objects.using(using), Node.objects.using(using)
        self.running = self.jobs.filter(state=State.RUNNING)

    @property
    def markers(self) -> QuerySet[Marker]:
        """The newest markers, or all of them."""
        rows = Marker.objects.using(self.using)
        return rows if self.view.everything else newest(rows)

    def ready(self, seconds: float) -> dict[Head, QuerySet[Job]]:
        """The ready jobs of queues that are not paused, by stretches of the index that claims use."""
        names = paused()
        ready = in_line(self.using).filter(Q(expires_at=None) | Q(expires_at__gt=Now()), run_at__lte=now_plus(-seconds))
        found = [head for head in heads(self.using) if head.seconds > seconds and head.queue not in names]
        return {head: ready.filter(queue=head.queue, rank=head.rank) for head in found}

    # Running jobs, and the nodes that run them. (Hard limits are not checked: only prefork has them.)

    @Rule("running-on-a-node", _("the node of a running job has a row"), "death")
    def of_no_node(self) -> Rows:
        unknown = self.running.filter(~Exists(self.nodes.filter(pk=OuterRef("node_id"))), node_id__isnull=False)
        return [unknown.filter(started_at__lte=self.since)]

    @Rule("dead-node-rescued", _("the jobs that a dead node was running are given back"), "rescue")
    def of_dead_nodes(self) -> Rows:
        return [self.running.filter(node__dead_at__lte=self.since)]

    @Rule("silent-node-rescued", _("the jobs of a node that does not beat any more are given back"), "death")
    def of_silent_nodes(self) -> Rows:
        return [self.running.filter(node_id__in=self.view.silent(self.seconds))]

    @Rule("silent-node-dead", _("a node that does not beat any more is declared dead"), "death", at_home=True)
    def silent_nodes(self) -> Rows:
        return [self.nodes.filter(pk__in=self.view.silent(self.seconds))]

    @Rule("dead-node-silent", _("a dead node finds its beat gone, and takes a new id"), "rescue", at_home=True)
    def dead_nodes_that_beat(self) -> Rows:
        return [self.nodes.filter(pk__in=silence(), dead_at__lte=self.since)]

    @Rule("dead-everywhere", _("a node that is dead in the first database is dead in all"), "rescue")
    def dead_at_home_only(self) -> Rows:
        alive = self.nodes.filter(dead_at=None)
        if self.using == databases.home() or not (keys := list(alive.values_list("pk", flat=True))):
            return []
        dead = Node.objects.using(databases.home()).filter(pk__in=keys, dead_at__lte=self.since)
        return [alive.filter(pk__in=list(dead.values_list("pk", flat=True)))]

    @Rule("known-at-home", _("a node that lives in any database is known in the first one, where it beats"), "death")
    def forgotten_at_home(self) -> Rows:
        alive = self.nodes.filter(dead_at=None, started_at__lte=self.since)
        if self.using == databases.home() or not (keys := set(alive.values_list("pk", flat=True))):
            return []
        known = Node.objects.using(databases.home()).filter(pk__in=keys)
        return [alive.filter(pk__in=keys.difference(known.values_list("pk", flat=True)))]

    # Waiting jobs: they become ready when they are due, and a free worker takes them

    @Rule("due-ready", _("a scheduled job that is due becomes ready"), "poll")
    def overdue(self) -> Rows:
        return [self.jobs.filter(state=State.SCHEDULED, run_at__lte=self.since).order_by("run_at")]

    @Rule(
        "ready-taken",
        _("a worker that has a free process takes the ready jobs of its queues"),
        "poll",
        waiting=lambda search: [*search.ready(late_after()).values()],
    )
    def not_taken(self) -> Rows:
        found = [(head, rows) for head, rows in self.ready(self.seconds).items() if head.queue in self.view.served]
        for free in NOT_HELD:
            # A limit may hold back the remaining jobs, which is not an error.
            found = [(head, free(head.queue, rows)) for head, rows in found]
        return [rows for _, rows in found]

    @Rule("expired-cancelled", _("a job that was not started before it expired is cancelled"), "poll")
    def expired(self) -> Rows:
        waiting = self.jobs.filter(state__in=(State.SCHEDULED, State.READY))
        return [waiting.filter(expires_at__lte=self.since).order_by("expires_at")]

    @Rule("cancellation-heeded", _("a job that was asked to end while it ran does not wait to run again"), "poll")
    def asked_to_end(self) -> Rows:
        notes = Cancellation.objects.using(self.using).filter(~Exists(self.running.filter(pk=OuterRef("pk"))))
        return [notes.filter(at__lte=self.since).order_by("at")]

    # Idempotency keys: a marker is committed with the effects that it stands for, and with their job

    @Rule("one-marker-per-key", _("an idempotency key has one marker, so that its effects are committed once"))
    def twice(self) -> Rows:
        # Without the unique index there may be older duplicates: another rule finds that the index is missing.
        found = self.markers.values("key", "kind").annotate(count=Count("*")).filter(count__gt=1)
        return [list(found.order_by().values_list("key")[:MOST])]

    @Rule("marker-succeeded", _("the job that left the marker of an idempotency key succeeded"))
    def without_a_success(self) -> Rows:
        other = self.jobs.filter(pk=OuterRef("job")).exclude(state=State.SUCCEEDED)
        return [self.markers.filter(Exists(other), kind=Marker.Kind.TASK)]

    @Rule("schema-complete", _("the database has all constraints and indexes of the models"))
    def missing(self) -> Rows:
        connection, found = connections[self.using], []
        for model in tables():
            parts = store.of(self.using).parts(model._meta.db_table)
            present: set[str] = set().union(*(constraints(self.using, part) for part in parts))
            names = [index.name for index in model._meta.indexes]
            if connection.features.can_introspect_check_constraints:
                names += [constraint.name for constraint in model._meta.constraints]
            found += [(name,) for name in names if name not in present]
        return [found]
