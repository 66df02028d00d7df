"""awa: a queue in PostgreSQL, written in Rust, whose handlers run in an event loop.

Many jobs at once go over a connection of its own (COPY), and so not with the caller's transaction.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, make_dataclass
from functools import cached_property
from typing import Any, ClassVar

from benchmarks.peers.peer import Peer, database_url, in_loop

QUEUE = "default"


@dataclass(frozen=True)
class Task:
    #: The class of its arguments, by whose name a handler is found.
    arguments: Any
    body: Callable[[int], Any]

    async def handle(self, job: Any) -> None:
        await self.body(job.args.number)


@dataclass(frozen=True, kw_only=True)
class Awa(Peer):
    at_once: int = 20
    is_transactional: ClassVar[bool] = True
    is_async: ClassVar[bool] = True
    packages: ClassVar[tuple[str, ...]] = ("awa-pg",)

    @cached_property
    def client(self) -> Any:
        import awa

        return awa.Client(database_url())

    def install(self) -> None:
        subprocess.run([sys.executable, "-m", "awa", "--database-url", database_url(), "migrate"], check=True, stdout=2)
        self.client.install_queue_storage()

    def task(self, body: Callable[[int], Any]) -> Any:
        return Task(make_dataclass(body.__name__.title(), [("number", int)]), in_loop(body))

    def enqueue(self, task: Any, number: int) -> None:
        from awa.bridge import insert_job_sync
        from django.db import connection

        insert_job_sync(connection, task.arguments(number), queue=QUEUE)

    def bulk(self, task: Any, numbers: Sequence[int]) -> None:
        self.client.enqueue_many_copy([task.arguments(number) for number in numbers], queue=QUEUE)

    def purge(self) -> None:
        self.client.install_queue_storage(reset=True)

    def workers(self, processes: int) -> list[list[str]]:
        return [[sys.executable, "-m", "benchmarks.peers.awa", str(self.at_once)] for _ in range(processes)]


async def _work(limit: int) -> None:
    import asyncio

    import awa

    from benchmarks.project.tasks import TASKS

    client = awa.AsyncClient(database_url())
    for task in set(TASKS.values()):
        client.task(task.arguments, queue=QUEUE)(task.handle)
    await client.start([(QUEUE, limit)])
    await asyncio.Event().wait()


PEERS = (
    Awa(name="awa", about="20 at once in each process; many jobs over a connection of its own"),
    Awa(name="awa-async", at_once=1000, about="1,000 async bodies at once in each process"),
)

if __name__ == "__main__":
    import asyncio

    import django

    django.setup()
    asyncio.run(_work(int(sys.argv[1])))
