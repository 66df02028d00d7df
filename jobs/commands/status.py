"""``manage.py jobs status``."""

from __future__ import annotations

import datetime
import math
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

from django.db.models import Count, DurationField, ExpressionWrapper, F, Max
from django.db.models.functions import Now

from jobs import databases, instance
from jobs.commands.base import AS_JSON, Subcommand, option
from jobs.commands.text import table
from jobs.conf import conf
from jobs.maintenance import rescue
from jobs.models import ENDED, Job, Node, State
from jobs.queues import paused as paused_queues
from jobs.times import duration

LIVE = (State.SCHEDULED, State.READY, State.RUNNING)


class Status(Subcommand):
    name = "status"
    summary = "counts by state and queue, workers, the oldest ready job, the lag of the relay"
    more = (
        "Scheduled, ready and running jobs are counted through their partial indexes. Ended jobs have none: their\n"
        "count reads the whole table. --live leaves it out, for monitoring."
    )
    options = (
        AS_JSON,
        option("--live", action="store_true", help="leave out the ended jobs, whose count reads all history"),
    )
    examples = ("status", "status --live --json")

    def run(self, *, as_json: bool, live: bool, **options: Any) -> None:
        found = gather(live)
        if as_json:
            self.say_json(found)
        else:
            self.say("\n\n".join(as_text(found)))


def gather(live: bool) -> dict[str, Any]:
    """What ``status`` knows, summed up over all job databases. ``live`` leaves the ended jobs at None."""
    states: dict[str, int | None] = {state: None if live and state in ENDED else 0 for state in State}
    queues: dict[str, dict[str, int]] = {}
    waiting_since: dict[str, float] = {}
    marks: dict[str, dict[str, Any]] = {}
    running: Counter[uuid.UUID] = Counter()
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
        running.update(dict(rows.filter(state=State.RUNNING).values_list("node_id").annotate(Count("pk"))))
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
    nodes = _nodes(running)
    consumed = Counter(queue for node in nodes if node["alive"] for queue in node["queues"])
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
        "nodes": nodes,
        "dead_nodes": Node.objects.using(databases.home()).filter(dead_at__isnull=False, signed_off=False).count(),
        "oldest_ready_seconds": max(waiting_since.values(), default=None),
        "relay": {"due": due, "lag_seconds": lag},
    }


def _nodes(running: Counter[uuid.UUID]) -> list[dict[str, Any]]:
    with databases.side() as side:
        silence = rescue.read_silence(side)
    rows = Node.objects.using(databases.home()).filter(dead_at=None).order_by("started_at")
    return [
        {
            "id": str(node.pk),
            "hostname": node.hostname,
            "pid": node.pid,
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


def as_text(found: dict[str, Any]) -> Iterator[str]:
    yield table(
        [["queue", *LIVE]]
        + [[name, *(counts[state] for state in LIVE)] for name, counts in found["queues"].items()]
        + [["total", *(found["jobs"][state] for state in LIVE)]]
    )
    ended = {state: found["jobs"][state] for state in ENDED}
    if None not in ended.values():
        yield table([["ended", *ended], ["total", *ended.values()]])
    if found["nodes"]:
        yield table(
            [["worker", "host", "pid", "up for", "last beat", "running", "queues"]]
            + [
                [
                    n["id"][:8],
                    n["hostname"],
                    n["pid"],
                    duration(n["age_seconds"]),
                    ("never" if n["beat_seconds"] is None else f"{duration(n['beat_seconds'])} ago")
                    + ("" if n["alive"] else " (silent)"),
                    n["running"],
                    ", ".join(n["queues"]),
                ]
                for n in found["nodes"]
            ]
        )
    alive = sum(node["alive"] for node in found["nodes"])
    oldest = found["oldest_ready_seconds"]
    relay = found["relay"]
    lines = [
        f"workers: {alive} alive, {len(found['nodes']) - alive} silent, {found['dead_nodes']} died",
        "no job is ready" if oldest is None else f"the oldest ready job has waited {duration(oldest)}",
        f"due and not published: {relay['due']}"
        + (f", the oldest since {duration(relay['lag_seconds'])}" if relay["due"] else ""),
    ]
    yield "\n".join([*lines, *_remarks(found)])


def _remarks(found: dict[str, Any]) -> Iterator[str]:
    """What should not be so."""
    for alias, mark in found["databases"].items():
        if not mark["adopted"]:
            yield (
                f"the database {alias!r} is marked as another one, {mark['marked_as']!r}, and it is {mark['is']!r}: "
                "workers refuse it until `manage.py jobs adopt`"
            )
    for name, queue in found["queues"].items():
        waited = queue["oldest_ready_seconds"]
        if queue["paused"]:
            yield f"{name}: is paused; manage.py jobs resume {name}"
            continue
        if waited is None or waited < conf().GRACE:
            continue
        says = f"{name}: the oldest ready job has waited {duration(waited)}"
        count = queue["workers"]
        consumers = f"{count} workers consume" if count > 1 else "1 worker consumes"
        if not count:
            yield f"{says}, and no worker consumes its queue"
        elif not queue["running"]:
            yield f"{says} although {consumers} its queue, and none of its jobs is running"
        else:
            yield f"{says}; {consumers} its queue ({queue['running']} running)"
