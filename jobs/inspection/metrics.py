"""Prometheus' metrics, under the names that celery-exporter gave them where they mean the same.

They are read from the database when somebody scrapes: any process can answer for all, and none has to be up for it.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from jobs import extensions
from jobs.inspection import census


def exposition() -> tuple[bytes, str]:
    """The text for Prometheus, and its content type."""
    registry = CollectorRegistry()
    registry.register(_Collector())
    return generate_latest(registry), CONTENT_TYPE_LATEST


class _Collector:
    def collect(self) -> Iterator[Any]:
        found = census.gather(live=True)
        due, queues = found["due"], found["queues"].items()
        live = [([name, state], each[state]) for name, each in queues for state in census.LIVE]

        def of_queues(key: str) -> list[Any]:
            return [([name], each[key]) for name, each in queues]

        def of_nodes(key: str) -> list[Any]:
            return [([each["hostname"].rpartition("@")[2], each["id"]], each[key]) for each in found["nodes"]]

        one, node = ["queue_name"], ["hostname", "node"]
        gauges: Any = (
            ("celery_queue_length", f"Ready jobs of a queue; {census.MOST} are counted.", one, of_queues("ready")),
            ("celery_active_consumer_count", "Workers that consume it.", one, of_queues("workers")),
            ("jobs_oldest_ready_seconds", "How long the oldest waits.", one, of_queues("oldest_ready_seconds")),
            ("jobs_queue_paused", "1: it is paused.", one, of_queues("paused")),
            ("jobs_live", "Jobs that have not ended.", [*one, "state"], live),
            ("celery_worker_up", "1: it beats.", node, of_nodes("alive")),
            ("celery_worker_tasks_active", "Jobs that it runs.", node, of_nodes("running")),
            ("jobs_worker_processes", "How many it can run.", node, of_nodes("concurrency")),
            ("jobs_due", "Scheduled jobs that are due and not ready yet.", [], [([], due["count"])]),
            ("jobs_due_lag_seconds", "For how long the oldest of them is due.", [], [([], due["lag_seconds"])]),
        )
        more, counters = (
            chain.from_iterable(each() for each in extensions.through(door)) for door in ("metrics", "counters")
        )
        for kind, table in ((GaugeMetricFamily, [*gauges, *more]), (CounterMetricFamily, counters)):
            for name, says, labels, samples in table:
                family: Any = kind(name, says, labels=labels)
                for values, number in samples(found) if callable(samples) else samples:
                    family.add_metric(values, float(number or 0))
                yield family
