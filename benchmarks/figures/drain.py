"""How many jobs a second two processes run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from benchmarks import completions, processes
from benchmarks.figures.figure import CALLERS, OURS, Column, Figure
from benchmarks.goals import Goal
from benchmarks.scene import Scene

KEPT = ("celery-redis-kept", "celery-rabbitmq-kept")


class Drain(Figure):
    name = "drain"
    title = "Drain"
    about = (
        "The jobs are queued, then the workers start, with two processes for bodies. The rate is that between "
        "the first and the last completion; who is not done after the time is measured by what it did. *idem* "
        "locks a row, looks, writes and commits; *empty* only notes that it ran. `bare` are two processes that "
        "do nothing but the body. The body is the same for all: where the queue has its own transaction around it, as "
        "jobs have, its `atomic()` is a savepoint. Oban, PgQueuer and awa run *empty* in their event loop, and *idem* "
        "in two threads of each process."
    )
    columns = (
        Column(key="idem_per_s", title="idem, jobs/s", better="more", is_drawn=True),
        Column(key="idem_worker_us", title="idem: worker CPU µs/job"),
        Column(key="idem_postgres_us", title="idem: PostgreSQL CPU µs/job"),
        Column(key="noop_per_s", title="empty, jobs/s", better="more", is_drawn=True),
        Column(key="noop_worker_us", title="empty: worker CPU µs/job"),
        Column(key="noop_postgres_us", title="empty: PostgreSQL CPU µs/job"),
        Column(key="start_s", title="start to first job, s", digits=1),
    )
    goals = (
        Goal(figure="drain", key="idem_per_s", against=("bare",), least=0.75, says="idem, beside bare bodies"),
        Goal(
            figure="drain",
            key="idem_per_s",
            against=("dramatiq-rabbitmq",),
            least=1.1,
            says="idem, beside Dramatiq on RabbitMQ",
        ),
        Goal(
            figure="drain",
            key="idem_per_s",
            against=("celery-redis", "celery-rabbitmq"),
            least=5.0,
            says="idem, beside bare Celery",
        ),
        Goal(
            figure="drain",
            key="idem_per_s",
            against=KEPT,
            least=2.0,
            says="idem, beside Celery with kept connections",
        ),
        Goal(
            figure="drain",
            key="noop_per_s",
            against=("celery-redis",),
            least=3.0,
            says="empty, beside bare Celery on Redis",
        ),
        Goal(figure="drain", key="noop_per_s", against=("django-q2",), least=2.0, says="empty, beside Django-Q2"),
        Goal(figure="drain", key="idem_per_s", against=("oban",), least=1.15, says="idem, beside Oban"),
        Goal(figure="drain", key="noop_per_s", against=("oban",), least=0.8, says="empty, beside Oban"),
        Goal(
            figure="drain",
            peer="jobs-grouped",
            key="idem_per_s",
            against=("bare",),
            least=1.1,
            says="grouped idem, beside bare bodies",
        ),
        Goal(
            figure="drain",
            peer="jobs-grouped",
            key="noop_per_s",
            against=("oban",),
            least=1.3,
            says="grouped empty, beside Oban",
        ),
    )
    peers = ("bare", "jobs-relaxed", "jobs-grouped", *CALLERS, *KEPT, "celery-redis-results")
    more_peers = OURS
    quick_peers = ("bare", "jobs", "celery-redis", "celery-redis-kept", "django-q2", "dramatiq-rabbitmq")
    parts = (
        {"body": "idem", "number": 10_000, "seconds": 4.5},
        {"body": "noop", "number": 10_000, "seconds": 4.5},
    )
    quick_parts = (
        {"body": "idem", "number": 1_500, "seconds": 3},
        {"body": "noop", "number": 1_500, "seconds": 3},
    )

    def takes(self, peer: str, options: Mapping[str, Any]) -> bool:
        # An empty body without a queue does nothing at all, and an empty body needs no connection that could be kept.
        return options["body"] != "noop" or peer not in ("bare", *KEPT)

    def measure(
        self, scene: Scene, body: str = "idem", number: int = 0, seconds: float = 0, **options: Any
    ) -> dict[str, float | None]:
        scene.empty()
        number = min(number, scene.peer.drained)
        scene.fill(body, number)
        began = time.monotonic_ns()
        with scene.workers() as pids:
            if not scene.wait(1, 1):
                raise RuntimeError("nothing ran")
            known, server, worker = completions.count(), scene.server_cpu()["postgres"], processes.cpu_seconds(pids)
            scene.wait(number, seconds)
            more = completions.count() - known
            worker = processes.cpu_seconds(pids) - worker
            server = scene.server_cpu()["postgres"] - server
        found = completions.read()
        return {
            f"{body}_per_s": completions.rate(found),
            f"{body}_worker_us": 1e6 * worker / more if more else None,
            f"{body}_postgres_us": 1e6 * server / more if more else None,
            f"{body}_done": len(found),
            "start_s": (min(each.at for each in found) - began) / 1e9,
        }
