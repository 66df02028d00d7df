"""How many jobs and workers there are, in which state, and what is late."""

import datetime
import math
import uuid
from collections import Counter, defaultdict, namedtuple
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from django.db import Error, connections
from django.db.models import Count, DurationField, ExpressionWrapper, F, IntegerField, OuterRef, Q, QuerySet, Subquery
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now

from jobs import extensions
from jobs.conf import conf
from jobs.lifecycle.queues import paused as paused_queues
from jobs.lifecycle.transitions import PARKED
from jobs.models import CLAIMABLE, ENDED, HELD, LINED, LIVE, Cancellation, Job, Node, State
from jobs.store import databases, identity

MOST = 10_000  #: Counts end here: of a long backlog it only matters that it is long.

#: The type of the error that a worker leaves if it does not know the task (``transitions.postpone_unknown``).
UNKNOWN = "NotRegistered"


def late_after() -> float:
    """Seconds that a job may wait for a free worker, or a due one for the maintenance, before somebody should look."""
    return max(10.0, 5 * conf().POLL_INTERVAL)


def at_least(count: int, capped: bool) -> str:
    """A count, for people; with a plus sign if nobody counted further."""
    return f"{count}+" if capped and count else str(count)


def _age(since: str) -> Any:
    """How long ago a column's moment is, by the database's clock."""
    return ExpressionWrapper(Now() - F(since), output_field=DurationField())


def _seconds(age: Any) -> float:
    return round(max(0.0, age.total_seconds()), 3)


# The workers


def workers(nodes: QuerySet[Node] | None = None) -> list[Any]:
    """The nodes, oldest first, as :func:`look_at` gives them, and with the time since their start as ``age``.

    Parameters:
        nodes: by default those that nobody declared dead, the silent ones among them.
    """
    if nodes is None:
        nodes = Node.objects.using(databases.home()).filter(dead_at=None).defer("tasks")
    return look_at(nodes.annotate(age=_age("started_at")).order_by("started_at"))


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


def nodes() -> list[dict[str, Any]]:
    """The workers that nobody declared dead, oldest first, as JSON."""
    running = running_by_node()
    return [_told(node, running) for node in workers()]


def _told(node: Any, running: Counter[uuid.UUID]) -> dict[str, Any]:
    names = ("hostname", "pid", "version", "pool", "concurrency", "queues")
    return {
        "id": str(node.pk),
        **{name: getattr(node, name) for name in names},
        "age_seconds": _seconds(node.age),
        "beat_seconds": round(node.silence, 3) if math.isfinite(node.silence) else None,
        "alive": node.is_alive,
        "stopping": node.stopping_at is not None,
        "takes_jobs": node.takes_jobs,
        "running": running[node.pk],
    }


def running_by_node() -> Counter[uuid.UUID]:
    running: Counter[uuid.UUID] = Counter()
    for rows in databases.each(Job.objects.filter(state=State.RUNNING)):
        running.update(dict(rows.values_list("node_id").annotate(Count("pk"))))
    return running


OLDEST = 20  #: How many running jobs are listed, the oldest ones.


def running_now() -> list[Any]:
    """The oldest jobs that run: each with its ``age``, and since when it is ``asked`` to end, or None."""
    asked = Cancellation.objects.filter(job=OuterRef("pk")).annotate(age=_age("at")).values("age")
    jobs = Job.objects.filter(state=State.RUNNING).defer("result", "errors", "error").order_by("started_at")
    found: list[Any] = []
    for rows in databases.each(jobs.annotate(age=_age("started_at"), asked=Subquery(asked))):
        found += rows[:OLDEST]
    return sorted(found, key=lambda job: job.started_at)[:OLDEST]


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
    rows = rows.annotate(age=_age("run_at"), number=RawSQL(_BESIDE, (MOST,), IntegerField()))
    found = rows.values_list("queue", "rank", "age", "number")
    return [Head(queue, rank, _seconds(age), number) for queue, rank, age, number in found]


def in_line(using: str | None = None) -> QuerySet[Job]:
    """The ready jobs in the order of claims: with it the planner takes their index, even to count a few."""
    return Job.objects.using(using).filter(CLAIMABLE).order_by("queue", "rank", "run_at", "pk")


def ready(queue: str) -> str:
    """How many jobs of the queue are ready, for people."""
    counts = [rows[:MOST].count() for rows in databases.each(in_line().filter(queue=queue))]
    return at_least(sum(counts), MOST in counts)


def lines() -> Callable[[str], str]:
    """How many jobs of a task with a limit are ready, for people: of the first :data:`MOST`, or of its one line."""
    rows = Job.objects.filter(LINED).order_by("limit_key", "queue", "rank", "run_at", "pk")
    seen = Counter(task for each in databases.each(rows) for task in each.values_list("task", flat=True)[:MOST])
    capped = seen.total() >= MOST

    def number(task: str) -> str:
        own = databases.each(rows.filter(limit_key=task)) if capped else ()
        return at_least(max(seen[task], sum(each[:MOST].count() for each in own)), capped)

    return number


def scheduled(using: str) -> QuerySet[Any]:
    """The scheduled jobs, the first ones first, with ``age``: for how long they are due, negative before that."""
    return Job.objects.using(using).filter(state=State.SCHEDULED).order_by("run_at").annotate(age=_age("run_at"))


#: What is told of a queue, here of an empty one. ``held``: those of the ready jobs that wait for their limit;
#: ``parked``: those of the scheduled ones that wait for a worker that knows their task.
IDLE: dict[str, Any] = {str(state): 0 for state in LIVE} | {"capped": False, "oldest_ready_seconds": None}
IDLE |= {"workers": 0, "paused": False, "held": 0, "parked": 0}


class Live:
    """What lives, by queue, summed up over all job databases; :data:`MOST` of a queue's jobs that wait are counted."""

    def __init__(self) -> None:
        self.queues: dict[str, dict[str, Any]] = defaultdict(IDLE.copy)
        self.unknown: Counter[str] = Counter()
        self.late: list[float] = []  #: For how many seconds each scheduled job is due that nobody has made ready.
        self.running: Counter[uuid.UUID] = Counter()  #: How many jobs each worker runs.
        for alias in conf().DATABASES:
            self._count(alias)

    def _count(self, using: str) -> None:
        rows, queues = Job.objects.using(using), self.queues
        for head in heads(using):
            queue = queues[head.queue]
            queue["ready"] += head.number
            queue["oldest_ready_seconds"] = max(queue["oldest_ready_seconds"] or 0.0, head.seconds)
            queue["capped"] |= head.number >= MOST
        held = rows.filter(HELD).order_by("queue", "id").values_list("queue", flat=True)[:MOST]
        first = scheduled(using).filter(run_at__lt=PARKED).values_list("queue", "age", "task", "error__type")[:MOST]
        parked = rows.filter(state=State.SCHEDULED, run_at=PARKED).values_list("queue", "task")[:MOST]
        counted = ([*held], ("ready", "held")), ([name for name, *_ in first], ("scheduled",))
        for names, keys in (*counted, ([name for name, _ in parked], ("scheduled", "parked"))):
            for name, count in Counter(names).items():
                for key in keys:
                    queues[name][key] += count
                queues[name]["capped"] |= len(names) >= MOST
        self.late += [seconds for _, age, *_ in first if (seconds := age.total_seconds()) >= 0]
        self.unknown.update([task for _, _, task, error in first if error == UNKNOWN] + [task for _, task in parked])
        for name, node, count in rows.filter(state=State.RUNNING).values_list("queue", "node_id").annotate(Count("pk")):
            queues[name]["running"] += count
            self.running[node] += count

    def total(self, state: str) -> int:
        return sum(queue[state] for queue in self.queues.values())

    @property
    def is_capped(self) -> bool:
        return any(queue["capped"] for queue in self.queues.values())


def gather(live: bool) -> dict[str, Any]:
    """What there is, summed up over all job databases. ``live`` leaves the ended jobs at None.

    Of a queue's scheduled and ready jobs :data:`MOST` are counted; ``capped`` says that there may be more.
    """
    counted = Live()
    queues, late = counted.queues, counted.late
    jobs: dict[str, Any] = {str(state): counted.total(state) for state in LIVE}
    jobs |= {str(state): None if live else 0 for state in ENDED}
    for rows in () if live else databases.each(Job.objects.filter(state__in=ENDED)):
        for state, count in rows.values_list("state").annotate(Count("pk")):
            jobs[state] += count
    day = datetime.timedelta(days=1)
    lost = Q(signed_off=False) & (Q(seen_at=None) | Q(dead_at__gt=Now() - day))
    told = Node.objects.using(databases.home()).filter(Q(dead_at=None) | lost).defer("tasks")
    found = workers(told.annotate(dead=_age("dead_at")))
    listed = [_told(node, counted.running) for node in found if node.dead_at is None]
    died = sorted((node for node in found if node.dead_at), key=lambda node: node.dead)
    pauses = paused_queues()
    # Queues without jobs are listed too: somebody paused them, or a worker serves them.
    for name in pauses:
        queues[name]["paused"] = True
    for node in listed:
        for name in node["queues"] if node["alive"] else ():
            queues[name]["workers"] += int(node["takes_jobs"])
    waited = [queue["oldest_ready_seconds"] for queue in queues.values() if queue["oldest_ready_seconds"] is not None]
    result = {
        "databases": {alias: identity.marks(alias) for alias in conf().DATABASES},
        "jobs": jobs,
        "capped": counted.is_capped,
        "queues": dict(sorted(queues.items())),
        "pauses": {name: {"at": row.at, "by": row.by, "reason": row.reason} for name, row in pauses.items()},
        "nodes": listed,
        "dead_nodes": sum(node.dead < day for node in died),
        "died": [
            {"id": str(node.pk), "hostname": node.hostname, "dead_seconds": _seconds(node.dead)}
            for node in died
            if node.seen_at is None
        ],
        "oldest_ready_seconds": max(waited, default=None),
        "due": {"count": len(late), "lag_seconds": round(max(late, default=0.0), 3)},
        "unknown_tasks": dict(counted.unknown),
    }
    for status in extensions.through("status"):
        result |= status(result)
    return result


def ailments() -> list[str]:
    """Why no job is run, in a word each, if so; what the health check answers."""
    reasons, aliases = [], conf().DATABASES
    try:
        if not has_workers():
            reasons.append("no_worker")
        first = [job.age for alias in aliases for job in scheduled(alias).only("pk")[:1]]
        if any(age.total_seconds() > late_after() for age in first):
            reasons.append("overdue")
        if not all(mark["adopted"] for mark in map(identity.marks, aliases)):
            reasons.append("not_adopted")
    except Error:
        reasons = ["database"]
    return reasons
