"""Which workers are there, which jobs are ready, and what is late: every page, command and rule asks here."""

import math
import uuid
from collections import Counter, namedtuple
from collections.abc import Iterable
from functools import partial
from typing import Any

from django.db import connections
from django.db.models import Count, DurationField, ExpressionWrapper, F, IntegerField, QuerySet
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now

from jobs.conf import conf
from jobs.models import CLAIMABLE, Job, Node, State
from jobs.store import databases

MOST = 10_000  #: Counts end here: of a long backlog it only matters that it is long.

#: The type of the error that a worker leaves if it does not know the task (``transitions.postpone_unknown``).
UNKNOWN = "NotRegistered"


def late_after() -> float:
    """Seconds that a job may wait for a free worker, or a due one for the maintenance, before somebody should look."""
    return max(10.0, 5 * conf().POLL_INTERVAL)


def at_least(count: int, capped: bool) -> str:
    """A count, for people; with a plus sign if nobody counted further."""
    return f"{count}+" if capped and count else str(count)


def age_of(since: str) -> Any:
    """How long ago a column's moment is, by the database's clock."""
    return ExpressionWrapper(Now() - F(since), output_field=DurationField())


def seconds_of(age: Any) -> float:
    return round(max(0.0, age.total_seconds()), 3)


# The workers


def workers(nodes: QuerySet[Node] | None = None) -> list[Any]:
    """The nodes, oldest first, as :func:`look_at` gives them, and with the time since their start as ``age``.

    Parameters:
        nodes: by default those that nobody declared dead, the silent ones among them.
    """
    if nodes is None:
        nodes = Node.objects.using(databases.home()).filter(dead_at=None).defer("tasks")
    return look_at(nodes.annotate(age=age_of("started_at")).order_by("started_at"))


def has_workers() -> bool:
    return any(node.takes_jobs for node in workers())


def look_at(nodes: Iterable[Any]) -> list[Any]:
    """Give each node what its row does not say: its ``silence``, and whether it ``is_alive`` and ``takes_jobs``.

    This decides it for every page, command and rule. The silence is in seconds, and infinite if it never beat.
    """
    # Race: a node that registers itself writes its row, then its beat. So the beats are read first.
    known = silence()
    found = list(nodes)
    for node in found:
        node.silence = known.get(node.pk, math.inf)
        node.is_alive = node.dead_at is None and node.silence < conf().DEAD_AFTER
        node.takes_jobs = node.is_alive and node.stopping_at is None
    return found


_beats = databases.SideDatabase()


def silence() -> dict[uuid.UUID, float]:
    """Seconds since the last beat of each node that ever beat."""
    vendor = connections[databases.home()].vendor
    # They are in another file on SQLite only; a second connection for each page would cost more than its queries.
    ask = _beats.execute if vendor == "sqlite" else partial(databases.ask, databases.home())
    found = ask(f"SELECT node, {databases.EPOCH_NOW[vendor]} - at FROM jobs_beat")
    return {uuid.UUID(str(node)): max(0.0, float(seconds)) for node, seconds in found}


def running_by_node() -> Counter[uuid.UUID]:
    running: Counter[uuid.UUID] = Counter()
    for rows in databases.each(Job.objects.filter(state=State.RUNNING)):
        running.update(dict(rows.values_list("node_id").annotate(Count("pk"))))
    return running


# What waits

#: The first ready job of each queue and rank. It steps through the index, and never reads all of them.
_HEADS = """
WITH RECURSIVE head(id) AS (
    SELECT (SELECT id FROM jobs_job WHERE state = 'ready' AND held IS NULL ORDER BY queue, rank, run_at, id LIMIT 1)
    UNION ALL
    SELECT (
        SELECT following.id FROM jobs_job AS following
        WHERE following.state = 'ready' AND following.held IS NULL
          AND (following.queue, following.rank) > (job.queue, job.rank)
        ORDER BY following.queue, following.rank, following.run_at, following.id LIMIT 1
    )
    FROM head JOIN jobs_job AS job ON job.id = head.id
)
SELECT id FROM head
"""

#: How many there are beside a head, up to a number.
_BESIDE = """
SELECT count(*) FROM (
    SELECT 1 FROM jobs_job AS ready
    WHERE ready.state = 'ready' AND ready.held IS NULL AND ready.queue = jobs_job.queue AND ready.rank = jobs_job.rank
    ORDER BY ready.queue, ready.rank, ready.run_at, ready.id LIMIT %s
) AS counted
"""

#: The ready jobs of a queue and a rank: for how many seconds the oldest has waited, and how many they are, up to MOST.
Head = namedtuple("Head", "queue rank seconds number")


def heads(using: str) -> list[Head]:
    rows = Job.objects.using(using).filter(pk__in=RawSQL(_HEADS, ()))
    rows = rows.annotate(age=age_of("run_at"), number=RawSQL(_BESIDE, (MOST,), IntegerField()))
    found = rows.values_list("queue", "rank", "age", "number")
    return [Head(queue, rank, seconds_of(age), number) for queue, rank, age, number in found]


def in_line(using: str | None = None) -> QuerySet[Job]:
    """The ready jobs in the order of claims: with it the planner takes their index, even to count a few."""
    return Job.objects.using(using).filter(CLAIMABLE).order_by("queue", "rank", "run_at", "pk")


def ready(queue: str) -> str:
    """How many jobs of the queue are ready, for people."""
    counts = [rows[:MOST].count() for rows in databases.each(in_line().filter(queue=queue))]
    return at_least(sum(counts), MOST in counts)


def scheduled(using: str) -> QuerySet[Any]:
    """The scheduled jobs, the first ones first, with ``age``: for how long they are due, negative before that."""
    return Job.objects.using(using).filter(state=State.SCHEDULED).order_by("run_at").annotate(age=age_of("run_at"))
