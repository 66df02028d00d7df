"""Which workers there are, which jobs are ready, and what is late: every page, command and rule uses this."""

import math
import shlex
import sys
import uuid
from collections.abc import Iterable
from typing import Any

from django.db.models import DurationField, ExpressionWrapper, F, QuerySet
from django.db.models.functions import Now

from jobs.conf import celery_app, conf
from jobs.models import CLAIMABLE, Job, Node, Pause
from jobs.store import databases, heartbeats

MOST = 10_000  #: Counts stop here: of a long backlog it only matters that it is long.

#: The error type of a job whose task no worker knew (``contrib/unknown_tasks``).
UNKNOWN = "NotRegistered"


def late_after() -> float:
    """Seconds after which a ready job that no worker took, or a due one that is not ready, is late."""
    return max(10.0, 5 * conf().POLL_INTERVAL)


def at_least(count: int, capped: bool) -> str:
    """A count, for people; with a plus sign if it stopped there."""
    return f"{count}+" if capped and count else str(count)


def age_of(since: str) -> Any:
    """How long ago a column's moment is, by the database's clock."""
    return ExpressionWrapper(Now() - F(since), output_field=DurationField())


def seconds_of(age: Any) -> float:
    return round(max(0.0, age.total_seconds()), 3)


# The workers


def workers(nodes: QuerySet[Node] | None = None) -> list[Any]:
    """The nodes, oldest first, with what :func:`look_at` adds, and with the time since their start as ``age``.

    Parameters:
        nodes: by default all that are not declared dead, silent ones included.
    """
    if nodes is None:
        nodes = Node.objects.using(databases.home()).filter(dead_at=None).defer("tasks")
    return look_at(nodes.annotate(age=age_of("started_at")).order_by("started_at"))


def look_at(nodes: Iterable[Any]) -> list[Any]:
    """Add to each node what its row does not have: its ``silence``, and whether it ``is_alive`` and ``takes_jobs``.

    This decides it for every page, command and rule. The silence is in seconds; it is infinite if the node never beat.
    """
    # Race: a node that registers itself writes first its row, then its beat. So the beats are read first.
    known = silence()
    found = list(nodes)
    for node in found:
        node.silence = known.get(node.pk, math.inf)
        node.is_alive = node.dead_at is None and node.silence < conf().DEAD_AFTER
        node.takes_jobs = node.is_alive and node.stopping_at is None
    return found


#: A separate connection on SQLite only; elsewhere one more connection for each page would cost more than its queries.
_side = databases.SideDatabase(is_apart=False)


def silence() -> dict[uuid.UUID, float]:
    """Seconds since the last beat of each node that ever beat."""
    return heartbeats.silence(_side)


def worker_command(*options: str) -> str:
    """The command that starts a worker of this project; ``proj`` stands for the app's module if it is not known."""
    app = celery_app()
    modules = [sys.modules.get(f"{app.main}{end}") for end in ("", ".celery")] if app is not None else []
    is_there = any(each is app for module in modules if module is not None for each in vars(module).values())
    name = app.main if app is not None and is_there else "proj"
    return shlex.join(["celery", "-A", name, "worker", *options])


# Waiting jobs


def in_line(using: str | None = None) -> QuerySet[Job]:
    """The ready jobs in the order of claims: with this order the planner uses their index, even to count a few."""
    return Job.objects.using(using).filter(CLAIMABLE).order_by("queue", "rank", "run_at", "pk")


def ready(queue: str) -> str:
    """How many jobs of the queue are ready, for people."""
    counts = [rows[:MOST].count() for rows in databases.each(in_line().filter(queue=queue))]
    return at_least(sum(counts), MOST in counts)


def paused() -> dict[str, Pause]:
    rows = [row for alias in conf().DATABASES for row in Pause.objects.using(alias).all()]
    return {row.queue: row for row in sorted(rows, key=lambda row: row.queue)}
