"""How many bodies wait at once, and what an async body costs that does nothing."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks import completions, processes
from benchmarks.figures.figure import Column, Figure
from benchmarks.goals import Goal
from benchmarks.scene import Scene

#: Seconds until the server answers.
ANSWER = 1.0


@contextmanager
def slow_server() -> Iterator[int]:
    """An HTTP server on loopback that takes its time for each answer; yields its port. It has a thread of its own."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        await asyncio.sleep(ANSWER)
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nok")
        await writer.drain()
        writer.close()

    loop, begun = asyncio.new_event_loop(), threading.Event()
    ports: list[int] = []

    def run() -> None:
        server = loop.run_until_complete(asyncio.start_server(answer, "127.0.0.1", 0, backlog=4096))
        ports.append(server.sockets[0].getsockname()[1])
        begun.set()
        loop.run_forever()

    threading.Thread(target=run, name="slow-server", daemon=True).start()
    begun.wait()
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)


class Aio(Figure):
    name = "aio"
    title = "Async bodies"
    about = (
        "*waiting*: 2,000 jobs are queued, whose `async def` bodies each wait one second for an answer over loopback "
        "HTTP; two processes run 1,000 at once each. The time from the first INSERT to the last completion, and how "
        "many connections the worker has at the most, the supervisor's included. *empty*: 10,000 bodies that do "
        "nothing, async ones and then plain ones, with two processes; and both together."
    )
    columns = (
        Column(key="waiting_s", title="waiting: all of them, s", digits=2, better="less", is_drawn=True),
        Column(key="waiting_connections", title="waiting: connections"),
        Column(key="waiting_worker_us", title="waiting: worker CPU µs/job"),
        Column(key="async_per_s", title="empty async, jobs/s", better="more", is_drawn=True),
        Column(key="plain_per_s", title="empty plain, jobs/s", better="more"),
        Column(key="both_per_s", title="both together, jobs/s", better="more"),
    )
    goals = (Goal(figure="aio", key="waiting_s", most=4.0, says="2,000 bodies that wait one second"),)
    peers = quick_peers = ("jobs-async",)
    parts = ({"body": "waiting", "number": 2_000}, {"body": "empty", "number": 10_000})
    quick_parts = ({"body": "waiting", "number": 500}, {"body": "empty", "number": 1_000})
    rounds = 1
    timeout = 120.0

    def measure(self, scene: Scene, body: str = "", number: int = 0, **options: Any) -> dict[str, float | None]:
        return self._waiting(scene, number) if body == "waiting" else self._empty(scene, number)

    def _waiting(self, scene: Scene, number: int) -> dict[str, float | None]:
        with slow_server() as port:
            os.environ["BENCH_SLOW_PORT"] = str(port)
            scene.empty()
            with scene.workers() as pids:
                scene.warm()
                known, most = completions.count(), 0
                before, began = processes.cpu_seconds(pids), time.monotonic_ns()
                scene.fill("waits", number)
                while completions.count() < known + number and time.monotonic_ns() - began < 60e9:
                    most = max(most, self._connections(scene))
                    time.sleep(0.1)
                worker = processes.cpu_seconds(pids) - before
            found = completions.read(known)
        if len(found) < number:
            raise RuntimeError(f"only {len(found)} of {number} bodies have ended")
        # The jobs are queued while the first of them run.
        return {
            "waiting_s": (max(each.at for each in found) - began) / 1e9,
            "waiting_connections": most,
            "waiting_worker_us": 1e6 * worker / number,
        }

    def _connections(self, scene: Scene) -> int:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        return int(scene.execute(sql)[0][0])

    def _empty(self, scene: Scene, number: int) -> dict[str, float | None]:
        found: dict[str, float | None] = {}
        for name, bodies in (("async", ("anoop",)), ("plain", ("noop",)), ("both", ("anoop", "noop"))):
            scene.empty()
            for each in bodies:
                scene.fill(each, number // len(bodies))
            with scene.workers():
                scene.wait(number, 30)
            found[f"{name}_per_s"] = completions.rate(completions.read())
        return found
