"""The present state: jobs by queue and state, workers, what is late. One answer for pages, commands and metrics."""

import datetime
import math
import uuid
from collections import Counter, defaultdict
from typing import Any

from django.db import Error
from django.db.models import Case, Count, F, OuterRef, Q, Subquery, When
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Now

from jobs import extensions
from jobs.conf import conf
from jobs.contrib.inspection import counts
from jobs.contrib.inspection.counts import age_of, seconds_of, workers
from jobs.contrib.operator.statistics import Seconds
from jobs.contrib.operator.store import estimate, grouped, heads, running_by_node, scheduled
from jobs.lifecycle.transitions import PARKED
from jobs.models import ENDED, HELD, LIVE, UNSUCCESSFUL, Cancellation, Job, Node, State
from jobs.store import databases, identity

# The workers


def nodes() -> list[dict[str, Any]]:
    """The workers that are not declared dead, oldest first, as JSON."""
    running = running_by_node()
    return [_told(node, running) for node in workers()]


def _told(node: Any, running: Counter[uuid.UUID]) -> dict[str, Any]:
    names = ("hostname", "pid", "version", "pool", "concurrency", "queues")
    return {
        "id": str(node.pk),
        **{name: getattr(node, name) for name in names},
        "age_seconds": seconds_of(node.age),
        "beat_seconds": round(node.silence, 3) if math.isfinite(node.silence) else None,
        "alive": node.is_alive,
        "stopping": node.stopping_at is not None,
        "takes_jobs": node.takes_jobs,
        "running": running[node.pk],
    }


OLDEST = 20  #: How many running jobs are listed, the oldest ones.


def running_now() -> list[Any]:
    """The oldest running jobs: each with its ``age``, and the time since which it is ``asked`` to end, or None."""
    asked = Cancellation.objects.filter(job=OuterRef("pk")).annotate(age=age_of("at")).values("age")
    jobs = Job.objects.filter(state=State.RUNNING).defer("result", "errors", "error").order_by("started_at")
    found: list[Any] = []
    for rows in databases.each(jobs.annotate(age=age_of("started_at"), asked=Subquery(asked))):
        found += rows[:OLDEST]
    return sorted(found, key=lambda job: job.started_at)[:OLDEST]


# The jobs

#: The figures of a queue, here of an empty one. ``held``: how many of the ready jobs wait for their limit;
#: ``parked``: how many of the scheduled jobs wait for a worker that knows their task.
IDLE: dict[str, Any] = {str(state): 0 for state in LIVE} | {"capped": False, "oldest_ready_seconds": None}
IDLE |= {"workers": 0, "paused": False, "held": 0, "parked": 0}


class Live:
    """The live jobs by queue, over all job databases; up to :data:`counts.MOST` waiting jobs are counted per queue."""

    def __init__(self) -> None:
        self.queues: dict[str, dict[str, Any]] = defaultdict(IDLE.copy)
        self.unknown: Counter[str] = Counter()
        self.late: list[float] = []  #: For each scheduled job that is due and not ready yet: for how many seconds.
        self.running: Counter[uuid.UUID] = Counter()  #: How many jobs each worker runs.
        for alias in conf().DATABASES:
            self._count(alias)

    def _count(self, using: str) -> None:
        rows, queues = Job.objects.using(using), self.queues
        for head in heads(using):
            queue = queues[head.queue]
            queue["ready"] += head.number
            queue["oldest_ready_seconds"] = max(queue["oldest_ready_seconds"] or 0.0, head.seconds)
            queue["capped"] |= head.number >= counts.MOST
        held = rows.filter(HELD).order_by("queue", "id").values_list("queue")
        late = Case(When(run_at__lte=Now(), then=Seconds(F("age"))))
        first = scheduled(using).filter(run_at__lt=PARKED).annotate(kind=KeyTextTransform("type", "error"), late=late)
        kinds = first.values_list("queue", "task", "kind", "late")
        parked = rows.filter(state=State.SCHEDULED, run_at=PARKED).values_list("queue", "task")
        for found, keys in ((held, ("ready", "held")), (kinds, ("scheduled",)), (parked, ("scheduled", "parked"))):
            numbers = grouped(found[: counts.MOST])
            is_capped = sum(count for *_, count in numbers) >= counts.MOST
            for name, *rest, count in numbers:
                for key in keys:
                    queues[name][key] += count
                queues[name]["capped"] |= is_capped
                if rest and (found is parked or rest[1] == counts.UNKNOWN):
                    self.unknown[rest[0]] += count
                if found is kinds and rest[2] is not None:
                    self.late += [float(rest[2])] * count
        for name, node, count in rows.filter(state=State.RUNNING).values_list("queue", "node_id").annotate(Count("pk")):
            queues[name]["running"] += count
            self.running[node] += count

    def total(self, state: str) -> int:
        return sum(queue[state] for queue in self.queues.values())

    @property
    def is_capped(self) -> bool:
        return any(queue["capped"] for queue in self.queues.values())


#: Up to this many ended jobs are counted: it takes 50 ms.
COUNTED = 100_000


def _ended(using: str) -> tuple[dict[str, int], bool]:
    """How many jobs ended in each state, and whether these are estimates of the server, as for a long history."""
    about, rows = estimate(using), Job.objects.using(using)
    if sum(about.values()) < COUNTED:
        return dict(rows.filter(state__in=ENDED).values_list("state").annotate(Count("pk"))), False
    # Rare states may be missing in the estimates, and have an index of their own.
    rare = rows.filter(state__in=UNSUCCESSFUL).order_by("-pk").values_list("state", flat=True)[: counts.MOST]
    number = Counter(rare)
    at_least = {} if number.total() < counts.MOST else about
    return about | {state: max(number[state], at_least.get(state, 0)) for state in UNSUCCESSFUL}, True


def gather(live: bool) -> dict[str, Any]:
    """The present state, summed up over all job databases. With ``live`` the ended jobs stay None.

    Of a queue's scheduled and ready jobs up to :data:`counts.MOST` are counted; ``capped``: there may be more.
    ``estimated``: the numbers of ended jobs are the server's estimates.
    """
    counted = Live()
    queues, late = counted.queues, counted.late
    jobs: dict[str, Any] = {str(state): counted.total(state) for state in LIVE}
    jobs |= {str(state): None if live else 0 for state in ENDED}
    ended = [] if live else [_ended(alias) for alias in conf().DATABASES]
    for numbers, _ in ended:
        jobs |= {str(state): jobs[state] + numbers.get(state, 0) for state in ENDED}
    day = datetime.timedelta(days=1)
    lost = Q(signed_off=False) & (Q(seen_at=None) | Q(dead_at__gt=Now() - day))
    told = Node.objects.using(databases.home()).filter(Q(dead_at=None) | lost).defer("tasks")
    found = workers(told.annotate(dead=age_of("dead_at")))
    listed = [_told(node, counted.running) for node in found if node.dead_at is None]
    died = sorted((node for node in found if node.dead_at), key=lambda node: node.dead)
    pauses = counts.paused()
    # Queues without jobs are listed, too, if they are paused or a worker serves them.
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
        "estimated": any(is_estimate for _, is_estimate in ended),
        "queues": dict(sorted(queues.items())),
        "pauses": {name: {"at": row.at, "by": row.by, "reason": row.reason} for name, row in pauses.items()},
        "nodes": listed,
        "dead_nodes": sum(node.dead < day for node in died),
        "died": [
            {"id": str(node.pk), "hostname": node.hostname, "dead_seconds": seconds_of(node.dead)}
            for node in died
            if node.seen_at is None
        ],
        "oldest_ready_seconds": max(waited, default=None),
        "due": {"count": len(late), "lag_seconds": round(max(late, default=0.0), 3)},
        "unknown_tasks": dict(counted.unknown),
    }
    for status in parts("status"):
        result |= status(result)
    return result


#: Seconds after which a queue that has jobs and no worker is reported: a deploy takes a minute or two.
FORSAKEN = 300.0


def ailments() -> tuple[list[str], list[str]]:
    """For the health check: why no job is run (if none is), and why some jobs are not, a word for each reason."""
    failing, degraded, aliases = [], [], conf().DATABASES
    try:
        nodes = workers()
        if not any(node.takes_jobs for node in nodes):
            failing.append("no_worker")
        first = [job.age for alias in aliases for job in scheduled(alias).only("pk")[:1]]
        if any(age.total_seconds() > counts.late_after() for age in first):
            failing.append("overdue")
        if not all(mark["adopted"] for mark in map(identity.marks, aliases)):
            failing.append("not_adopted")
        served = {name for node in nodes if node.takes_jobs for name in node.queues} | {*counts.paused()}
        waits = (head for alias in aliases for head in heads(alias, 1) if head.queue not in served)
        if any(head.seconds > FORSAKEN for head in waits):
            degraded.append("queue_without_worker")
    except Error:
        failing, degraded = ["database"], []
    return failing, degraded


def parts(name: str) -> list[Any]:
    """What extensions define in their ``operator.py`` with a name: ``status``, ``KINDS``, ``problems``, ``metrics``."""
    return [getattr(module, name) for module in extensions.modules("operator") if hasattr(module, name)]
