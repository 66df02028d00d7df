"""Prometheus' metrics, under the names that celery-exporter gave them where they mean the same.

They are read from the database when somebody scrapes: any process can answer for all, and none has to be up for it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from django.db.models import Sum
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from jobs import extensions
from jobs.conf import conf
from jobs.inspection import census, demand, external_calls
from jobs.models import State, Tally


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
        unsettled = sum(external_calls.unsettled(alias).count() for alias in conf().DATABASES)
        ended: dict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
        for alias in conf().DATABASES:
            # All that was ever counted: the hours that are kept, and the sum of those before them (length 0).
            rows = Tally.objects.using(alias).filter(length__in=(0, 3600))
            sums = rows.values_list("task", "queue", "state", "error").annotate(Sum("count"))
            for task, queue, state, error, count in sums:
                ended[state][(task, queue, error) if state == State.FAILED else (task, queue)] += count

        def of_queues(key: str) -> list[Any]:
            return [([name], each[key]) for name, each in queues]

        def of_nodes(key: str) -> list[Any]:
            return [([each["hostname"].rpartition("@")[2], each["id"]], each[key]) for each in found["nodes"]]

        one, node, call = ["queue_name"], ["hostname", "node"], ["name", "queue_name"]
        gauges: Any = (
            ("celery_queue_length", f"Ready jobs of a queue; {census.MOST} are counted.", one, of_queues("ready")),
            ("celery_active_consumer_count", "Workers that consume it.", one, of_queues("workers")),
            ("jobs_oldest_ready_seconds", "How long the oldest waits.", one, of_queues("oldest_ready_seconds")),
            ("jobs_queue_paused", "1: it is paused.", one, of_queues("paused")),
            ("jobs_processes_needed", demand.SAYS, one, [([name], n) for name, n in demand.processes(found).items()]),
            ("jobs_live", "Jobs that have not ended.", [*one, "state"], live),
            ("celery_worker_up", "1: it beats.", node, of_nodes("alive")),
            ("celery_worker_tasks_active", "Jobs that it runs.", node, of_nodes("running")),
            ("jobs_worker_processes", "How many it can run.", node, of_nodes("concurrency")),
            ("jobs_due", "Scheduled jobs that are due and not ready yet.", [], [([], due["count"])]),
            ("jobs_due_lag_seconds", "For how long the oldest of them is due.", [], [([], due["lag_seconds"])]),
            ("jobs_unsettled_effects", "External calls that are ambiguous or parked.", [], [([], unsettled)]),
        )
        counters: Any = (
            ("celery_task_succeeded", "Jobs that succeeded.", call, ended["succeeded"].items()),
            ("celery_task_failed", "Jobs that failed.", [*call, "exception"], ended["failed"].items()),
            ("celery_task_revoked", "Jobs that were cancelled, or expired.", call, ended["cancelled"].items()),
        )
        gauges += tuple(each for metrics in extensions.through("metrics") for each in metrics())
        for kind, table in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
            for name, says, labels, samples in table:
                family: Any = kind(name, says, labels=labels)
                for values, number in samples(found) if callable(samples) else samples:
                    family.add_metric(values, float(number or 0))
                yield family
