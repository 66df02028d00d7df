"""How many jobs and workers there are, in which state, and what is late."""

from __future__ import annotations

import math
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, DurationField, ExpressionWrapper, F, Max, Q, QuerySet
from django.db.models.functions import Now
from django.utils.translation import gettext, ngettext

from jobs import databases, instance
from jobs.conf import conf
from jobs.maintenance import rescue
from jobs.models import ENDED, Job, Node, State
from jobs.queues import paused as paused_queues
from jobs.times import duration

LIVE = (State.SCHEDULED, State.READY, State.RUNNING)


@dataclass(frozen=True, slots=True)
class Worker:
    node: Node
    #: Seconds since its last beat; infinite for one that never beat.
    silence: float

    @property
    def is_alive(self) -> bool:
        return self.node.dead_at is None and self.silence < conf().DEAD_AFTER

    @property
    def takes_jobs(self) -> bool:
        return self.is_alive and self.node.stopping_at is None

    @property
    def name(self) -> str:
        return str(self.node)


def workers(nodes: QuerySet[Node]) -> list[Worker]:
    """The nodes, oldest first, each with its silence."""
    known = silence()
    return [Worker(node, known.get(node.pk, math.inf)) for node in nodes.order_by("started_at")]


def silence() -> dict[uuid.UUID, float]:
    """Seconds since the last beat of each node that ever beat."""
    with databases.side() as side:
        return rescue.read_silence(side)


def gather(live: bool) -> dict[str, Any]:
    """Summed up over all job databases. ``live`` leaves the ended jobs at None."""
    states: dict[str, int | None] = {state: None if live and state in ENDED else 0 for state in State}
    queues: dict[str, dict[str, int]] = {}
    waiting_since: dict[str, float] = {}
    marks: dict[str, dict[str, Any]] = {}
    running: Counter[uuid.UUID] = Counter()
    due, lag = 0, 0.0
    paused = paused_queues()
    for alias in conf().DATABASES:
        mark = marks[alias] = dict(instance.marks(alias))
        mark["adopted"] = mark["marked_as"] in (None, mark["is"])
        rows = Job.objects.using(alias)
        # One statement for each state: together they could not use their partial indexes.
        for state in LIVE:
            of_state = rows.filter(state=state)
            if state == State.RUNNING:
                grouped = list(of_state.values_list("queue", "node_id").annotate(Count("pk")))
                for _, node, count in grouped:
                    running[node] += count
                found = [(queue, count, None, 0, None) for queue, _, count in grouped]
            else:
                waits = Q(dispatched_at=None) if state == State.READY else Q(run_at__lte=Now())
                late = {"due": Count("pk", filter=waits), "late": _longest("run_at", filter=waits)}
                found = list(of_state.values_list("queue").annotate(n=Count("pk"), age=_longest("run_at"), **late))
            for queue, count, age, unpublished, lateness in found:
                of_queue = queues.setdefault(queue, dict.fromkeys(LIVE, 0))
                of_queue[state] += count
                states[state] = (states[state] or 0) + count
                if state == State.READY:
                    waiting_since[queue] = max(waiting_since.get(queue, 0.0), _seconds(age))
                if unpublished and queue not in paused:
                    due += unpublished
                    lag = max(lag, _seconds(lateness))
        if not live:
            for state, count in rows.filter(state__in=ENDED).values_list("state").annotate(Count("pk")):
                states[state] = (states[state] or 0) + count
    listed, dead = nodes(running)
    # Those without a live job, too: an idle queue is not one that is gone.
    for name in (*paused, *(queue for node in listed if node["alive"] for queue in node["queues"])):
        queues.setdefault(name, dict.fromkeys(LIVE, 0))
    consumed = Counter(queue for node in listed if node["takes_jobs"] for queue in node["queues"])
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
        "nodes": listed,
        "dead_nodes": dead,
        "oldest_ready_seconds": max(waiting_since.values(), default=None),
        "relay": {"due": due, "lag_seconds": lag},
    }


def running_by_node() -> Counter[uuid.UUID]:
    running: Counter[uuid.UUID] = Counter()
    for alias in conf().DATABASES:
        rows = Job.objects.using(alias).filter(state=State.RUNNING)
        running.update(dict(rows.values_list("node_id").annotate(Count("pk"))))
    return running


def nodes(running: Counter[uuid.UUID]) -> tuple[list[dict[str, Any]], int]:
    """The workers that nobody declared dead, oldest first; and how many died of late, without signing off."""
    rows = Node.objects.using(databases.home()).filter(Q(dead_at=None) | Q(signed_off=False))
    found: list[Any] = workers(rows.annotate(age=_age("started_at")).defer("tasks"))
    listed = [worker for worker in found if worker.node.dead_at is None]
    return [
        {
            "id": str(worker.node.pk),
            "hostname": worker.node.hostname,
            "pid": worker.node.pid,
            "version": worker.node.version,
            "pool": worker.node.pool,
            "concurrency": worker.node.concurrency,
            "relay_error": worker.node.relay_error,
            "queues": worker.node.queues,
            "age_seconds": _seconds(worker.node.age),
            "beat_seconds": round(worker.silence, 3) if math.isfinite(worker.silence) else None,
            "alive": worker.is_alive,
            "stopping": worker.node.stopping_at is not None,
            "takes_jobs": worker.takes_jobs,
            "running": running[worker.node.pk],
        }
        for worker in listed
    ], len(found) - len(listed)


def _longest(since: str, filter: Q | None = None) -> Any:
    """An aggregate: the age of the oldest, by the database's clock."""
    return Max(_age(since), filter=filter)


def _age(since: str) -> Any:
    return ExpressionWrapper(Now() - F(since), output_field=DurationField())


def _seconds(age: Any) -> float:
    return round(max(0.0, age.total_seconds()), 3)


#: Remarks about what somebody wanted, or what is only much.
NO_FAULT = ("paused", "busy")


def remarks(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What needs attention: of what kind it is, and a sentence."""
    for alias, mark in found["databases"].items():
        if not mark["adopted"]:
            says = gettext(
                "the database %(database)r is marked as another one, %(mark)r, and it is %(is)r: workers refuse it "
                "until `manage.py jobs adopt`"
            )
            yield "copied", says % {"database": alias, "mark": mark["marked_as"], "is": mark["is"]}
    for name, queue in found["queues"].items():
        waited, workers = queue["oldest_ready_seconds"], queue["workers"]
        if queue["paused"]:
            yield "paused", gettext("%(queue)s: is paused; manage.py jobs resume %(queue)s") % {"queue": name}
            continue
        if waited is None or waited < conf().GRACE:
            continue
        if not workers:
            says = gettext("%(queue)s: the oldest ready job has waited %(time)s, and no worker consumes its queue")
        elif not queue["running"]:
            says = ngettext(
                "%(queue)s: the oldest ready job has waited %(time)s although %(workers)s worker consumes its queue, "
                "and none of its jobs is running",
                "%(queue)s: the oldest ready job has waited %(time)s although %(workers)s workers consume its queue, "
                "and none of its jobs is running",
                workers,
            )
        else:
            says = ngettext(
                "%(queue)s: the oldest ready job has waited %(time)s; %(workers)s worker consumes its queue "
                "(%(running)s running)",
                "%(queue)s: the oldest ready job has waited %(time)s; %(workers)s workers consume its queue "
                "(%(running)s running)",
                workers,
            )
        kind = "busy" if workers and queue["running"] else "starving"
        yield kind, says % {"queue": name, "time": duration(waited), "workers": workers, "running": queue["running"]}
    for node in found["nodes"]:
        if node["relay_error"]:
            values = {"host": node["hostname"], "id": node["id"][:8], "error": node["relay_error"]}
            yield "relay", gettext("%(host)s (%(id)s) cannot publish: %(error)s") % values
