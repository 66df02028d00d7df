"""The part of the broker's outages in the core: steps of the worker, and Celery's signals."""

from __future__ import annotations

from typing import Any

from celery import signals

from jobs.contrib.broker_outages.alarm import alarm
from jobs.doors import Extension


def _on_shutting_down(**kwargs: Any) -> None:
    alarm.start()


def _on_shutdown(**kwargs: Any) -> None:
    alarm.stop()


class BrokerOutages(Extension):
    def ready(self) -> None:
        signals.worker_shutting_down.connect(_on_shutting_down, dispatch_uid=__name__)
        signals.worker_shutdown.connect(_on_shutdown, dispatch_uid=__name__)

    def attaching(self, worker: Any) -> None:
        from jobs.contrib.broker_outages import outages

        worker.app.steps["worker"].add(outages.AlarmStep)
        worker.app.steps["consumer"].add(outages.OutageStep)
