"""PgQueuer: a queue in PostgreSQL, woken by NOTIFY, that runs in an event loop.

Its faster driver, asyncpg, and a batch that is a part of what runs at once: as in its guide to tuning.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from benchmarks.peers.peer import Peer, database_url, in_loop, truncate


@dataclass(frozen=True)
class Task:
    name: str
    body: Callable[[int], Any]

    async def handle(self, job: Any) -> None:
        await self.body(int(job.payload))


class Driver:
    """Django's connection: its own driver for psycopg takes none that is in a transaction."""

    def fetch(self, query: str, *values: object) -> list[dict[str, Any]]:
        from django.db import connection
        from psycopg import RawCursor
        from psycopg.rows import dict_row

        cursor = RawCursor(connection.connection, row_factory=dict_row)
        return cursor.execute(query, values).fetchall()  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class PgQueuer(Peer):
    at_once: int = 100
    #: How many it claims with a statement; at most half of what runs at once.
    batch: int = 20
    is_transactional: ClassVar[bool] = True
    is_async: ClassVar[bool] = True
    packages: ClassVar[tuple[str, ...]] = ("pgqueuer", "asyncpg")

    @cached_property
    def queries(self) -> Any:
        from pgqueuer.queries import SyncQueries

        return SyncQueries(Driver())

    def install(self) -> None:
        for command in ("install", "autovac"):
            subprocess.run(
                [sys.executable, "-m", "pgqueuer", "--pg-dsn", database_url(), command], check=True, stdout=2
            )

    def task(self, body: Callable[[int], Any]) -> Any:
        return Task(body.__name__, in_loop(body))

    def enqueue(self, task: Any, number: int) -> None:
        self.queries.enqueue(task.name, b"%d" % number)

    def bulk(self, task: Any, numbers: Sequence[int]) -> None:
        payloads = [b"%d" % number for number in numbers]
        self.queries.enqueue([task.name] * len(payloads), payloads, [0] * len(payloads))

    def purge(self) -> None:
        truncate(["pgqueuer", "pgqueuer_log", "pgqueuer_statistics"])

    def workers(self, processes: int) -> list[list[str]]:
        command = [sys.executable, "-m", "benchmarks.peers.pgqueuer", str(self.batch), str(self.at_once)]
        return [command for _ in range(processes)]


async def _work(batch: int, at_once: int) -> None:
    import asyncpg
    from pgqueuer import PgQueuer
    from pgqueuer.db import AsyncpgDriver

    from benchmarks.project.tasks import TASKS

    queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(database_url())))
    for task in set(TASKS.values()):
        queue.entrypoint(task.name)(task.handle)
    await queue.run(batch_size=batch, max_concurrent_tasks=at_once)


PEERS = (
    PgQueuer(name="pgqueuer", about="asyncpg, batches of 20, 100 at once in each process"),
    PgQueuer(name="pgqueuer-async", batch=500, at_once=1000, about="1,000 async bodies at once in each process"),
)

if __name__ == "__main__":
    import django
    import uvloop

    django.setup()
    uvloop.run(_work(int(sys.argv[1]), int(sys.argv[2])))
