"""Oban for Python: a queue in PostgreSQL, woken by NOTIFY, that runs in an event loop.

It enqueues with a connection of the caller's that has an async ``execute``; Django's gets one here. Its workers have
the event loop and the JSON of its own command.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from benchmarks.peers.peer import Peer, database_url, in_loop, truncate

QUEUE = "default"


class Row:
    def __init__(self, cursor: Any) -> None:
        self.cursor = cursor

    async def fetchone(self) -> Any:
        return self.cursor.fetchone()


class Connection:
    """Django's connection. It never waits in an event loop."""

    async def execute(self, statement: str, values: Any) -> Row:
        from django.db import connection

        return Row(connection.connection.execute(statement, values))


@dataclass(frozen=True, kw_only=True)
class Oban(Peer):
    at_once: int = 20
    is_transactional: ClassVar[bool] = True
    is_async: ClassVar[bool] = True
    packages: ClassVar[tuple[str, ...]] = ("oban",)

    @cached_property
    def client(self) -> Any:
        import oban
        from psycopg_pool import AsyncConnectionPool

        return oban.Oban(pool=AsyncConnectionPool(database_url(), open=False))

    def install(self) -> None:
        subprocess.run([sys.executable, "-m", "oban", "install", "--dsn", database_url()], check=True)

    def task(self, body: Callable[[int], Any]) -> Any:
        from oban import job

        return job(queue=QUEUE)(in_loop(body))

    def enqueue(self, task: Any, number: int) -> None:
        self.bulk(task, [number])

    def bulk(self, task: Any, numbers: Sequence[int]) -> None:
        call = self.client.enqueue_many([task.new(number) for number in numbers], conn=Connection())
        try:
            call.send(None)
        except StopIteration:
            return
        raise RuntimeError("Oban waited for something else than the database")

    def purge(self) -> None:
        truncate(["oban_jobs", "oban_producers", "oban_leaders"])

    def workers(self, processes: int) -> list[list[str]]:
        return [[sys.executable, "-m", "benchmarks.peers.oban", str(self.at_once)] for _ in range(processes)]


async def _work(limit: int) -> None:
    import asyncio

    from oban import Oban

    pool = await Oban.create_pool(database_url())
    async with Oban(pool=pool, queues={QUEUE: limit}):
        await asyncio.Event().wait()


PEERS = (
    Oban(name="oban", about="20 at once in each process"),
    Oban(name="oban-async", at_once=1000, about="1,000 async bodies at once in each process"),
)

if __name__ == "__main__":
    import django
    import orjson
    import uvloop
    from psycopg.types.json import set_json_dumps, set_json_loads

    set_json_dumps(orjson.dumps)
    set_json_loads(orjson.loads)
    django.setup()
    import benchmarks.project.tasks  # noqa: F401

    uvloop.run(_work(int(sys.argv[1])))
