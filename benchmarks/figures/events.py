"""What an event costs, beside the call of a job."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from benchmarks import completions, processes
from benchmarks.figures.enqueue import BLOCK, unit
from benchmarks.figures.figure import Column, Figure
from benchmarks.goals import Goal
from benchmarks.scene import START, Scene, quantile

#: So many events are told of in one transaction before the workers start.
PART = 1_000

#: A worker sends at most so many messages to other services before the first event.
GREETINGS = 10


class Events(Figure):
    name = "events"
    title = "Events"
    about = (
        "What an event adds to the transaction that tells of it, beside a job's call: blocks without any, with a "
        "call, with an event, and with one that has an order key, in turn. Then *idem* is drained as above, of jobs "
        "that were called, and of as many events, which are handed on to one handler meanwhile. Two services do it in "
        "turn, as if each had its own machine: one hands its events on to RabbitMQ, then the other one receives and "
        "handles them."
    )
    columns = (
        Column(key="call_p50_ms", title="a call, added p50 ms", digits=3, better="less"),
        Column(key="emit_p50_ms", title="emit, added p50 ms", digits=3, better="less"),
        Column(key="ordered_p50_ms", title="with a key, added p50 ms", digits=3, better="less"),
        Column(key="call_p99_ms", title="a call, added p99 ms", digits=2, better="less"),
        Column(key="emit_p99_ms", title="emit, added p99 ms", digits=2, better="less"),
        Column(key="ordered_p99_ms", title="with a key, added p99 ms", digits=2, better="less"),
        Column(key="jobs_per_s", title="jobs/s", better="more"),
        Column(key="events_per_s", title="events/s", better="more"),
        Column(key="jobs_us", title="CPU µs/job"),
        Column(key="events_us", title="CPU µs/event"),
        Column(key="told_per_s", title="to RabbitMQ/s", better="more"),
        Column(key="handled_per_s", title="from RabbitMQ/s", better="more"),
    )
    goals = (
        Goal(
            figure="events",
            key="emit_p50_ms",
            against=("jobs",),
            against_key="call_p50_ms",
            most=1.0,
            says="added p50 of an event, beside a job's call",
        ),
        Goal(
            figure="events",
            key="events_per_s",
            against=("jobs",),
            against_key="jobs_per_s",
            least=0.8,
            says="events handled, beside the same jobs called directly",
        ),
        Goal(
            figure="events",
            peer="jobs-services",
            key="handled_per_s",
            against=("jobs",),
            against_key="jobs_per_s",
            least=0.8,
            says="events that another service handles, beside the same jobs called directly",
        ),
    )
    peers = ("jobs", "jobs-services")
    more_peers = ("jobs-rabbitmq", "jobs-alone")
    quick_peers = ("jobs",)
    parts = (
        {"part": "emit", "number": 2_000},
        {"part": "jobs", "number": 6_000, "seconds": 10},
        {"part": "events", "number": 6_000, "seconds": 10},
        {"part": "services", "number": 6_000, "seconds": 20},
    )
    quick_parts = (
        {"part": "emit", "number": 600},
        {"part": "jobs", "number": 2_000, "seconds": 4},
        {"part": "events", "number": 2_000, "seconds": 4},
    )
    rounds = 2

    def takes(self, peer: str, options: Mapping[str, Any]) -> bool:
        return (peer == "jobs-services") == (options["part"] == "services")

    def measure(
        self, scene: Scene, part: str = "", number: int = 0, seconds: float = 0, **options: Any
    ) -> dict[str, float | None]:
        scene.empty()
        if part == "emit":
            return _added(scene, number)
        if part == "services":
            return _services(scene, number, seconds)
        if part == "jobs":
            scene.fill("idem", number)
        else:
            _tell(scene, scene.users(number))
        with scene.workers() as pids:
            if not scene.wait(1, 1):
                raise RuntimeError("nothing ran")
            known, used = completions.count(), _cpu(scene, pids)
            scene.wait(number, seconds)
            more = completions.count() - known
            used = _cpu(scene, pids) - used
        return {
            f"{part}_per_s": completions.rate(completions.read()),
            f"{part}_us": 1e6 * used / more if more else None,
        }


def _cpu(scene: Scene, pids: list[int]) -> float:
    return processes.cpu_seconds(pids) + scene.server_cpu()["postgres"]


def _added(scene: Scene, number: int) -> dict[str, float | None]:
    from benchmarks.project.events import user_came, user_came_in_order

    ways: dict[str, Callable[[int], Any] | None] = {
        "bare": None,
        "call": lambda pk: scene.peer.enqueue(scene.task("noop"), pk),
        "emit": user_came,
        "ordered": user_came_in_order,
    }
    found: dict[str, list[float]] = {way: [] for way in ways}
    for block in range(1 + number // BLOCK):
        for way, call in ways.items():
            seconds = [unit(scene, call) for _ in range(BLOCK)]
            # The first block only warms up.
            found[way] += seconds if block else []
    bare = found.pop("bare")
    added: dict[str, float | None] = {}
    for way, times in found.items():
        added[f"{way}_p50_ms"] = 1e3 * (median(times) - median(bare))
        added[f"{way}_p99_ms"] = 1e3 * (quantile(times, 0.99) - quantile(bare, 0.99))
    return added


def _tell(scene: Scene, keys: list[int]) -> None:
    from django.db import transaction

    from benchmarks.project.events import user_came

    for first in range(0, len(keys), PART):
        with transaction.atomic():
            for pk in keys[first : first + PART]:
                user_came(pk)
    scene.finish()


def _services(scene: Scene, number: int, seconds: float) -> dict[str, float | None]:
    """Let another service, with a copy of this database, receive the events of this one."""
    from django.db import connection

    from benchmarks.project.celery import app

    keys = scene.users(number)
    here = connection.settings_dict["NAME"]
    connection.close()
    with connection._nodb_cursor() as cursor:
        cursor.execute(f'DROP DATABASE IF EXISTS "{here}-there"')
        cursor.execute(f'CREATE DATABASE "{here}-there" TEMPLATE "{here}"')
    there = {"BENCH_SERVICE": "there", "BENCH_DATABASE_URL": f"{os.environ['BENCH_DATABASE_URL']}-there"}
    with scene.workers(1), scene.running(scene.peer.workers(2), **there):
        # It receives only the events that are told of after its start.
        deadline = time.monotonic() + START
        while not completions.count() and time.monotonic() < deadline:
            _tell(scene, keys[:1])
            time.sleep(1)
    _tell(scene, keys)
    with app.connection_for_read() as broker:

        def count() -> int:
            return int(broker.default_channel.queue_declare("events.there", passive=True).message_count)

        # Greetings are not counted as events.
        known = found = count() + GREETINGS
        times = list[tuple[float, int]]()
        # The first worker was killed. It has to be found dead before another one sends.
        deadline = time.monotonic() + START + seconds
        with scene.workers(1):
            while found < known - GREETINGS + number and time.monotonic() < deadline:
                found = count()
                if found > known:
                    times.append((time.monotonic(), found))
                time.sleep(0.02)
    completions.path().unlink()
    with scene.running(scene.peer.workers(2), **there):
        scene.wait(number, seconds)
    (began, first), (ended, last) = times[0], times[-1]
    return {"told_per_s": (last - first) / (ended - began), "handled_per_s": completions.rate(completions.read())}
