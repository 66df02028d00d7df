"""How many jobs and workers there are, in which state, and what is late."""

from __future__ import annotations

import datetime
import math
import uuid
from collections import Counter
from typing import Any

from django.db.models import Count, DurationField, ExpressionWrapper, F, Max
from django.db.models.functions import Now

from jobs import databases, instance
from jobs.conf import conf
from jobs.maintenance import rescue
from jobs.models import ENDED, Job, Node, State
from jobs.queues import paused as paused_queues

LIVE = (State.SCHEDULED, State.READY, State.RUNNING)


def gather(live: bool) -> dict[str, Any]:
    """Summed up over all job databases. ``live`` leaves the ended jobs at None."""
    states: dict[str, int | None] = {state: None if live and state in ENDED else 0 for state in State}
    queues: dict[str, dict[str, int]] = {}
    waiting_since: dict[str, float] = {}
    marks: dict[str, dict[str, Any]] = {}
    running = running_by_node()
    due, lag = 0, 0.0
    for alias in conf().DATABASES:
        mark = marks[alias] = dict(instance.marks(alias))
        mark["adopted"] = mark["marked_as"] in (None, mark["is"])
        rows = Job.objects.using(alias)
        for state in LIVE:
            # One statement for each: together they could not use their partial indexes.
            found = rows.filter(state=state).values_list("queue").annotate(n=Count("pk"), age=_longest("run_at"))
            for queue, count, age in found:
                of_queue = queues.setdefault(queue, dict.fromkeys(LIVE, 0))
                of_queue[state] += count
                states[state] = (states[state] or 0) + count
                if state == State.READY:
                    waiting_since[queue] = max(waiting_since.get(queue, 0.0), _seconds(age))
        if not live:
            for state, count in rows.filter(state__in=ENDED).values_list("state").annotate(Count("pk")):
                states[state] = (states[state] or 0) + count
        for waiting in (
            rows.filter(state=State.READY, dispatched_at=None),
            rows.filter(state=State.SCHEDULED, run_at__lte=Now()),
        ):
            late = waiting.aggregate(n=Count("pk"), age=_longest("run_at"))
            due += late["n"]
            lag = max(lag, _seconds(late["age"])) if late["n"] else lag
    paused = paused_queues()
    for name in paused:
        queues.setdefault(name, dict.fromkeys(LIVE, 0))
    workers = nodes(running)
    consumed = Counter(queue for node in workers if node["alive"] for queue in node["queues"])
    return {
        "databases": marks,
        "jobs": {str(state): count for state, count in states.items()},
        "queues": {
            name: {
                **{str(state): count for state, count in queues[name].items()},
                "oldest_ready_seconds": waiting_since.get(name),
                "workers": consumed[name],
                "paused": name in paused,
            }
            for name in sorted(queues)
        },
        "nodes": workers,
        "dead_nodes": Node.objects.using(databases.home()).filter(dead_at__isnull=False, signed_off=False).count(),
        "oldest_ready_seconds": max(waiting_since.values(), default=None),
        "relay": {"due": due, "lag_seconds": lag},
    }


def running_by_node() -> Counter[uuid.UUID]:
    running: Counter[uuid.UUID] = Counter()
    for alias in conf().DATABASES:
        rows = Job.objects.using(alias).filter(state=State.RUNNING)
        running.update(dict(rows.values_list("node_id").annotate(Count("pk"))))
    return running


def nodes(running: Counter[uuid.UUID]) -> list[dict[str, Any]]:
    """The workers that nobody declared dead, oldest first."""
    with databases.side() as side:
        silence = rescue.read_silence(side)
    rows = Node.objects.using(databases.home()).filter(dead_at=None).order_by("started_at")
    return [
        {
            "id": str(node.pk),
            "hostname": node.hostname,
            "pid": node.pid,
            "version": node.version,
            "pool": node.pool,
            "concurrency": node.concurrency,
            "relay_error": node.relay_error,
            "queues": node.queues,
            "age_seconds": _seconds(node.age),
            "beat_seconds": round(silence[node.pk], 3) if node.pk in silence else None,
            "alive": silence.get(node.pk, math.inf) < conf().DEAD_AFTER,
            "running": running[node.pk],
        }
        for node in rows.annotate(age=_age("started_at")).defer("tasks")
    ]


def _longest(since: str) -> Any:
    """An aggregate: the age of the oldest, by the database's clock."""
    return Max(_age(since))


def _age(since: str) -> Any:
    return ExpressionWrapper(Now() - F(since), output_field=DurationField())


def _seconds(age: datetime.timedelta) -> float:
    return round(max(0.0, age.total_seconds()), 3)
