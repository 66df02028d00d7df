"""Prometheus' metrics, under the names that celery-exporter gave them where they mean the same.

They are read from the database when somebody scrapes: any process can answer for all, and none has to be up for it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from django.db.models import Sum
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from jobs import census, effects
from jobs.conf import conf
from jobs.models import State, Tally

#: Tallies that together are everything that was ever counted: what is older than the hours that are kept, and those.
EVER = (0, 3600)


def exposition() -> tuple[bytes, str]:
    """The text, and its content type."""
    registry = CollectorRegistry()
    registry.register(_Collector())
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _family(kind: Any, name: str, says: str, labels: list[str], samples: Iterable[tuple[Sequence[str], Any]]) -> Any:
    family = kind(name, says, labels=labels)
    for values, number in samples:
        family.add_metric(values, float(number or 0))
    return family


class _Collector:
    def collect(self) -> Iterator[Any]:
        found = census.gather(live=True)
        queues, nodes = found["queues"].items(), found["nodes"]
        for name, says, key in (
            ("celery_queue_length", f"Ready jobs of a queue; {census.MOST} are counted.", "ready"),
            ("celery_active_consumer_count", "Workers that consume it.", "workers"),
            ("jobs_oldest_ready_seconds", "How long the oldest waits.", "oldest_ready_seconds"),
            ("jobs_queue_paused", "1: it is paused.", "paused"),
        ):
            samples = [([queue], each[key]) for queue, each in queues]
            yield _family(GaugeMetricFamily, name, says, ["queue_name"], samples)
        samples = [([queue, state], each[state]) for queue, each in queues for state in census.LIVE]
        yield _family(GaugeMetricFamily, "jobs_live", "Jobs that have not ended.", ["queue_name", "state"], samples)
        for name, says, key in (
            ("celery_worker_up", "1: it beats.", "alive"),
            ("celery_worker_tasks_active", "Jobs that it runs.", "running"),
            ("jobs_worker_processes", "How many it can run.", "concurrency"),
        ):
            samples = [([node["hostname"], node["id"]], node[key]) for node in nodes]
            yield _family(GaugeMetricFamily, name, says, ["hostname", "node"], samples)
        sums: dict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
        for alias in conf().DATABASES:
            rows = Tally.objects.using(alias).filter(length__in=EVER).values_list("task", "queue", "state", "error")
            for task, queue, state, error, count in rows.annotate(Sum("count")):
                sums[state][(task, queue, error) if state == State.FAILED else (task, queue)] += count
        names = ["name", "queue_name"]
        for name, says, state, labels in (
            ("celery_task_succeeded", "Jobs that succeeded.", State.SUCCEEDED, names),
            ("celery_task_failed", "Jobs that failed.", State.FAILED, [*names, "exception"]),
            ("celery_task_revoked", "Jobs that were cancelled, or expired.", State.CANCELLED, names),
        ):
            yield _family(CounterMetricFamily, name, says, labels, sums[state].items())
        due = found["due"]
        yield GaugeMetricFamily("jobs_due", "Scheduled jobs that are due and not ready yet.", due["count"])
        yield GaugeMetricFamily("jobs_due_lag_seconds", "For how long the oldest of them is due.", due["lag_seconds"])
        unsettled = sum(effects.unsettled(alias).count() for alias in conf().DATABASES)
        yield GaugeMetricFamily("jobs_unsettled_effects", "External calls that are ambiguous or parked.", unsettled)
