"""Prometheus' metrics, with the names of celery-exporter where they mean the same.

They are read from the database at each scrape: any web process can answer, and no exporter process is needed.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from django.utils import timezone
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from jobs.contrib.inspection.counts import MOST
from jobs.contrib.operator import statistics, status
from jobs.contrib.operator.statistics import HOUR, mean
from jobs.models import LIVE

Samples = Callable[[dict[str, Any]], Iterable[tuple[Sequence[str], Any]]]

DRAIN = 60  #: Seconds in which the ready jobs should be worked off.


NEEDED = f"Processes that are busy, and those that work off in {DRAIN} s what is ready and may run."


def processes(found: dict[str, Any]) -> dict[str, int]:
    """The processes that each queue needs, from ``status.gather``: for running jobs, and to run ready ones in time.

    The time of a job is the mean of this hour and the last one; if no job ended, each job counts as one process. Held
    jobs, and jobs that a pause or the queue's limit keeps, need none. Jobs that wait for a worker that knows their
    task need one together. The result is never higher than the number of jobs.
    """
    ran: dict[str, Counter[str]] = defaultdict(Counter)
    for row in statistics.of(HOUR, statistics.floor(timezone.now(), HOUR) - HOUR):
        ran[row.queue].update(row.ran)
    most = {row["name"]: row["concurrency"] for row in found.get("limits", ()) if row["kind"] == "queue"}
    needed = {}
    for name, queue in found["queues"].items():
        ready = 0 if queue["paused"] else queue["ready"] - queue["held"]
        takes = mean(ran[name])
        share = 1.0 if takes is None else min(1.0, takes / DRAIN)
        limit = most.get(name) or math.inf
        needed[name] = max(queue["running"], int(min(queue["running"] + math.ceil(ready * share), limit)))
        if queue["parked"] and not queue["paused"]:
            # With no process, the release that knows their task would never be started.
            needed[name] = max(1, needed[name])
    return needed


def _queues(key: str) -> Samples:
    return lambda found: [([name], each[key]) for name, each in found["queues"].items()]


def _workers(key: str) -> Samples:
    return lambda found: [([node["hostname"].rpartition("@")[2], node["id"]], node[key]) for node in found["nodes"]]


def _live(found: dict[str, Any]) -> list[Any]:
    return [([name, state], each[state]) for name, each in found["queues"].items() for state in LIVE]


def _due(key: str) -> Samples:
    return lambda found: [([], found["due"][key])]


def _needed(found: dict[str, Any]) -> list[Any]:
    return [([name], number) for name, number in processes(found).items()]


def _ended(state: str) -> Samples:
    return lambda found: found["ended"][state].items()


_QUEUE, _NODE, _TASK = ["queue_name"], ["hostname", "node"], ["name", "queue_name"]

GAUGES: tuple[tuple[str, str, list[str], Samples], ...] = (
    ("celery_queue_length", f"Ready jobs of a queue; {MOST} are counted.", _QUEUE, _queues("ready")),
    ("celery_active_consumer_count", "Workers that consume it.", _QUEUE, _queues("workers")),
    ("jobs_oldest_ready_seconds", "How long the oldest waits.", _QUEUE, _queues("oldest_ready_seconds")),
    ("jobs_queue_paused", "1: it is paused.", _QUEUE, _queues("paused")),
    ("jobs_live", "Jobs that have not ended.", [*_QUEUE, "state"], _live),
    ("celery_worker_up", "1: it beats.", _NODE, _workers("alive")),
    ("celery_worker_tasks_active", "Jobs that it runs.", _NODE, _workers("running")),
    ("jobs_worker_processes", "How many it can run.", _NODE, _workers("concurrency")),
    ("jobs_due", "Scheduled jobs that are due and not ready yet.", [], _due("count")),
    ("jobs_due_lag_seconds", "For how long the oldest of them is due.", [], _due("lag_seconds")),
    ("jobs_processes_needed", NEEDED, _QUEUE, _needed),
)

COUNTERS: tuple[tuple[str, str, list[str], Samples], ...] = (
    ("celery_task_succeeded_total", "Jobs that succeeded.", _TASK, _ended("succeeded")),
    ("celery_task_failed_total", "Jobs that failed.", [*_TASK, "exception"], _ended("failed")),
    ("celery_task_revoked_total", "Jobs that were cancelled, or expired.", _TASK, _ended("cancelled")),
)


def exposition() -> tuple[bytes, str]:
    """The text for Prometheus, and its content type."""
    registry = CollectorRegistry()
    registry.register(_Collector())
    return generate_latest(registry), CONTENT_TYPE_LATEST


def families() -> Iterator[tuple[str, str, list[str], Any]]:
    """All metrics, also those of extensions."""
    return chain(GAUGES, *(more() for more in status.parts("metrics")), COUNTERS)


class _Collector:
    def collect(self) -> Iterator[Any]:
        found = status.gather(live=True) | {"ended": statistics.ever()}
        for name, says, labels, samples in families():
            # Prometheus' client writes the end of a counter's name by itself.
            kind: Any = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(name.removesuffix("_total"), says, labels=labels)
            for values, number in samples(found):
                family.add_metric(values, float(number or 0))
            yield family
