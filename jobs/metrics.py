"""Prometheus' metrics, under the names that celery-exporter gave them where they mean the same.

They are read from the database when somebody scrapes: any process can answer for all, and none has to be up for it.
"""

from __future__ import annotations

from collections.abc import Iterator
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


class _Collector:
    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Iterator[Any]:
        found = census.gather(live=True)
        yield from _queues(found)
        yield from _workers(found)
        yield from _ended()
        due = found["due"]
        yield GaugeMetricFamily("jobs_due", "Scheduled jobs that are due and not ready yet.", due["count"])
        yield GaugeMetricFamily("jobs_due_lag_seconds", "For how long the oldest of them is due.", due["lag_seconds"])
        unsettled = sum(effects.unsettled(alias).count() for alias in conf().DATABASES)
        yield GaugeMetricFamily("jobs_unsettled_effects", "External calls that are ambiguous or parked.", unsettled)


def _queues(found: dict[str, Any]) -> Iterator[Any]:
    length = GaugeMetricFamily(
        "celery_queue_length", f"Ready jobs of a queue; {census.MOST} are counted.", labels=["queue_name"]
    )
    consumers = GaugeMetricFamily("celery_active_consumer_count", "Workers that consume it.", labels=["queue_name"])
    jobs = GaugeMetricFamily("jobs_live", "Jobs that have not ended.", labels=["queue_name", "state"])
    oldest = GaugeMetricFamily("jobs_oldest_ready_seconds", "How long the oldest waits.", labels=["queue_name"])
    paused = GaugeMetricFamily("jobs_queue_paused", "1: it is paused.", labels=["queue_name"])
    for name, queue in found["queues"].items():
        length.add_metric([name], queue["ready"])
        consumers.add_metric([name], queue["workers"])
        for state in census.LIVE:
            jobs.add_metric([name, state], queue[state])
        oldest.add_metric([name], queue["oldest_ready_seconds"] or 0)
        paused.add_metric([name], int(queue["paused"]))
    yield from (length, consumers, jobs, oldest, paused)


def _workers(found: dict[str, Any]) -> Iterator[Any]:
    up = GaugeMetricFamily("celery_worker_up", "1: it beats.", labels=["hostname", "node"])
    active = GaugeMetricFamily("celery_worker_tasks_active", "Jobs that it runs.", labels=["hostname", "node"])
    processes = GaugeMetricFamily("jobs_worker_processes", "How many it can run.", labels=["hostname", "node"])
    for node in found["nodes"]:
        labels = [node["hostname"], node["id"]]
        up.add_metric(labels, int(node["alive"]))
        active.add_metric(labels, node["running"])
        processes.add_metric(labels, node["concurrency"] or 0)
    yield from (up, active, processes)


def _ended() -> Iterator[Any]:
    labels = ["name", "queue_name"]
    succeeded = CounterMetricFamily("celery_task_succeeded", "Jobs that succeeded.", labels=labels)
    failed = CounterMetricFamily("celery_task_failed", "Jobs that failed.", labels=[*labels, "exception"])
    cancelled = CounterMetricFamily("celery_task_revoked", "Jobs that were cancelled, or expired.", labels=labels)
    for alias in conf().DATABASES:
        rows = Tally.objects.using(alias).filter(length__in=EVER)
        for task, queue, state, error, count in rows.values_list("task", "queue", "state", "error").annotate(
            Sum("count")
        ):
            if state == State.SUCCEEDED:
                succeeded.add_metric([task, queue], count)
            elif state == State.FAILED:
                failed.add_metric([task, queue, error], count)
            else:
                cancelled.add_metric([task, queue], count)
    yield from (succeeded, failed, cancelled)
