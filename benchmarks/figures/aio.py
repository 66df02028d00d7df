"""How many bodies wait at once, and what an async body costs that does nothing."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from benchmarks import completions, processes
from benchmarks.figures.figure import Column, Figure
from benchmarks.goals import Goal
from benchmarks.scene import Scene

#: Seconds until the server answers.
ANSWER = 1.0


class Slow(asyncio.Protocol):
    """One request: 100 µs of the processor, and half as much again with streams. The workers need it."""

    #: Nanoseconds of the monotonic clock: when the requests came.
    asked: ClassVar[list[int]] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.asked.append(time.monotonic_ns())
        asyncio.get_running_loop().call_later(ANSWER, self.answer)

    def answer(self) -> None:
        self.transport.write(b"HTTP/1.0 200 OK\r\n\r\nok")
        self.transport.close()


@contextmanager
def slow_server() -> Iterator[int]:
    """An HTTP server on loopback that takes its time for each answer; yields its port. It has a thread of its own."""
    loop, begun = asyncio.new_event_loop(), threading.Event()
    ports: list[int] = []

    def run() -> None:
        server = loop.run_until_complete(loop.create_server(Slow, "127.0.0.1", 0, backlog=4096))
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
        "*waiting*: 2,000 jobs are committed at once while two processes are idle. Their `async def` bodies each wait "
        "one second for an answer over loopback HTTP, 1,000 at once in each process. The time from the end of the "
        "COMMIT to the last completion (nobody can need less than one second), the same from the start of the first "
        "body, which is later where all bodies are begun together, how many connections the workers have at the "
        "most, and the memory of the whole worker after it (PSS: what processes share counts once). *empty*: 10,000 "
        "bodies that do nothing, as in Drain: async ones, and for ours then plain ones, and both together; the rate of "
        "the middle four fifths."
    )
    columns = (
        Column(key="waiting_s", title="waiting: commit to last completion, s", digits=2, better="less", is_drawn=True),
        Column(key="waiting_first_s", title="waiting: first start to last completion, s", digits=2, better="less"),
        Column(key="waiting_connections", title="waiting: connections"),
        Column(key="waiting_memory_mb", title="waiting: memory, MB", digits=0, better="less"),
        Column(key="waiting_worker_us", title="waiting: worker CPU µs/job"),
        Column(key="async_per_s", title="empty async, jobs/s", better="more", is_drawn=True),
        Column(key="plain_per_s", title="empty plain, jobs/s", better="more"),
        Column(key="both_per_s", title="both together, jobs/s", better="more"),
    )
    goals = (
        Goal(figure="aio", key="waiting_s", peer="jobs-async", most=2.3, unit="s", says="2,000 bodies wait one second"),
        *(
            Goal(
                figure="aio",
                key="waiting_s",
                peer="jobs-async",
                against=(f"{name.lower()}-async",),
                most=1.0,
                says=f"2,000 bodies wait one second, beside {name}",
            )
            for name in ("Procrastinate", "Oban", "PgQueuer")
        ),
        Goal(
            figure="aio",
            key="async_per_s",
            peer="jobs-async",
            against=("oban-async",),
            least=1.0,
            says="empty async bodies, beside Oban",
        ),
    )
    peers = ("jobs-async", "procrastinate-async", "oban-async", "pgqueuer-async", "awa-async")
    quick_peers = ("jobs-async",)
    parts = ({"body": "waiting", "number": 2_000}, {"body": "empty", "number": 10_000})
    quick_parts = ({"body": "waiting", "number": 500}, {"body": "empty", "number": 5_000})
    rounds = 2
    timeout = 180.0

    def measure(self, scene: Scene, body: str = "", number: int = 0, **options: Any) -> dict[str, float | None]:
        return self._waiting(scene, number) if body == "waiting" else self._empty(scene, number)

    def _waiting(self, scene: Scene, number: int) -> dict[str, float | None]:
        from django.db import transaction

        with slow_server() as port:
            os.environ["BENCH_SLOW_PORT"] = str(port)
            scene.empty()
            with scene.workers() as pids:
                scene.warm()
                # The other process as well.
                time.sleep(1)
                keys = scene.users(number)
                scene.finish()
                known, most, deadline = completions.count(), 0, time.monotonic() + 60
                before = processes.cpu_seconds(pids)
                with transaction.atomic():
                    scene.peer.bulk(scene.task("waits"), keys)
                committed = time.monotonic_ns()
                while completions.count() < known + number and time.monotonic() < deadline:
                    most = max(most, self._connections(scene))
                    time.sleep(0.1)
                worker = processes.cpu_seconds(pids) - before
                memory = processes.memory(pids)
            found = completions.read(known)
        if len(found) < number:
            raise RuntimeError(f"only {len(found)} of {number} bodies have ended")
        last = max(each.at for each in found)
        return {
            "waiting_s": (last - committed) / 1e9,
            "waiting_first_s": (last - min(Slow.asked)) / 1e9,
            "waiting_connections": most,
            "waiting_memory_mb": memory / 1e6,
            "waiting_worker_us": 1e6 * worker / number,
        }

    def _connections(self, scene: Scene) -> int:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        return int(scene.execute(sql)[0][0])

    def _empty(self, scene: Scene, number: int) -> dict[str, float | None]:
        found: dict[str, float | None] = {}
        parts = [("async", ("anoop",)), ("plain", ("noop",)), ("both", ("anoop", "noop"))]
        for name, bodies in parts if scene.peer.name == "jobs-async" else parts[:1]:
            scene.empty()
            for each in bodies:
                scene.fill(each, number // len(bodies))
            with scene.workers():
                scene.wait(number, 30)
            # Who claims 1,000 at once ends them at once: between two such moments lies one claim less.
            found[f"{name}_per_s"] = completions.rate(completions.read(), trim=0.1)
        return found
