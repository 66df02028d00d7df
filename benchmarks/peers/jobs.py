"""This project."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from typing import Any, ClassVar

from benchmarks.peers.peer import Peer, broker_url, flush_redis, truncate


@dataclass(frozen=True, kw_only=True)
class Jobs(Peer):
    is_transactional: ClassVar[bool] = True
    has_workflows: ClassVar[bool] = True
    packages: ClassVar[tuple[str, ...]] = ("celery", "kombu", "psycopg")

    #: Whether its events go over the broker.
    is_service: bool = False
    #: Seconds for which a job is kept after it ended.
    kept: float | None = None
    #: More options of its tasks.
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_async(self) -> bool:  # type: ignore[override]
        """A worker that knows such a body has an event loop in each process."""
        return bool(self.at_once)

    def settings(self) -> dict[str, Any]:
        from jobs.conf import celery_settings

        url = broker_url(self.broker) if self.broker else "jobs://"
        found = {"INSTALLED_APPS": ["jobs", "jobs.events"], **celery_settings(url, prefix="CELERY_")}
        if self.at_once:
            found["JOBS"] = {"ASYNC_CONCURRENCY": self.at_once}
        if self.kept is not None:
            found["JOBS"] = {"RETENTION": self.kept}
        if self.is_service:
            found["INSTALLED_APPS"] += ["jobs.contrib.event_broker"]
            found["JOBS"] = {"SERVICE": os.environ.get("BENCH_SERVICE", "here"), "EVENT_BROKER": url}
        return found

    def app_options(self) -> dict[str, Any]:
        return {"task_cls": "jobs.task:Task"}

    def app_settings(self) -> dict[str, Any]:
        return {}

    def task(self, body: Callable[[int], Any]) -> Any:
        from benchmarks.project.celery import app

        # They are of plain bodies.
        return app.task(**({} if iscoroutinefunction(body) else self.options))(body)

    def workflow(self, steps: int, write: Callable[[int, int], None]) -> Any:
        from benchmarks.completions import record
        from benchmarks.project.celery import app

        def body(self: Any, number: int) -> None:
            for each in range(steps):
                self.step(str(each), write, number, each)
            record(number)

        return app.task(name=f"steps_{steps}", bind=True, durable=True)(body)

    def enqueue(self, task: Any, number: int) -> None:
        task.delay(number)

    def bulk(self, task: Any, numbers: Sequence[int]) -> None:
        task.delay_many([(number,) for number in numbers])

    def purge(self) -> None:
        from jobs.models import tables

        truncate(model._meta.db_table for model in tables() if model._meta.managed and not model._meta.proxy)
        if self.broker == "redis":
            flush_redis()
        elif self.broker:
            from benchmarks.project.celery import app

            app.control.purge()

    def workers(self, processes: int) -> list[list[str]]:
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.project.celery", "worker"]
        return [[*command, "-c", str(processes), "-l", "WARNING"]]


PEERS = (
    Jobs(name="jobs", broker="redis"),
    Jobs(name="jobs-rabbitmq", broker="rabbitmq"),
    Jobs(name="jobs-services", broker="rabbitmq", is_service=True, about="two services, each with its own database"),
    Jobs(name="jobs-alone", about="without a broker"),
    Jobs(name="jobs-relaxed", broker="redis", about="synchronous_commit=False", options={"synchronous_commit": False}),
    Jobs(name="jobs-grouped", broker="redis", about="grouped=True", options={"grouped": True}),
    Jobs(name="jobs-async", broker="redis", at_once=1000, about="1,000 async bodies at once in each process"),
    Jobs(name="jobs-pruned", broker="redis", about="jobs are kept for three minutes", kept=180.0),
    Jobs(name="jobs-full", broker="redis", about="a table full of finished jobs, and of others that wait"),
    Jobs(name="jobs-sqlite", database="sqlite", about="without a broker", drained=5_000),
)
