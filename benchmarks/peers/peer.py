"""What an adapter has to say about a queue."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import wraps
from typing import Any, ClassVar


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One queue, used in one way. Django is set up when its methods are called, except for :meth:`settings`."""

    name: str

    #: The server beside the database: ``"redis"``, ``"rabbitmq"`` or none.
    broker: str = ""

    #: ``"postgres"`` or ``"sqlite"``.
    database: str = "postgres"

    #: The most jobs of a drain: about as many as it can do in the time.
    drained: int = 10_000

    #: How many async bodies a process runs at once; 0: as many as it does.
    at_once: int = 0

    #: What it is, if its name does not say so.
    about: str = ""

    #: Whether a job exists if and only if the caller's transaction committed.
    is_transactional: ClassVar[bool] = False

    #: Whether it has tasks of several steps (:meth:`workflow`).
    has_workflows: ClassVar[bool] = False

    #: Whether its bodies can be ``async def``.
    has_async: ClassVar[bool] = False

    #: Whether all of its bodies run in an event loop.
    is_async: ClassVar[bool] = False

    #: The versions of these distributions are reported with its figures. It takes no part without the first one.
    packages: ClassVar[tuple[str, ...]] = ()

    def servers(self) -> set[str]:
        return {self.broker, self.database} - {"", "sqlite"}

    def settings(self) -> dict[str, Any]:
        """Its Django settings; its ``INSTALLED_APPS`` are added to those of the project."""
        return {}

    def install(self) -> None:
        """Make what it needs in the database and has no migrations of Django's for."""

    def task(self, body: Callable[[int], Any]) -> Any:
        """The decorator that makes a task of a function."""
        raise NotImplementedError

    def workflow(self, steps: int, write: Callable[[int, int], None]) -> Any:
        """The task that calls ``write(number, step)`` in each of so many steps, and records its completion."""
        raise NotImplementedError

    def enqueue(self, task: Any, number: int) -> None:
        """Enqueue a job, in a transaction."""
        raise NotImplementedError

    def bulk(self, task: Any, numbers: Sequence[int]) -> None:
        """Enqueue many jobs, in a transaction, the way its documentation does."""
        for number in numbers:
            self.enqueue(task, number)

    def purge(self) -> None:
        """Remove all jobs. No worker runs then."""

    def workers(self, processes: int) -> list[list[str]]:
        """The commands that start so many processes for bodies."""
        raise NotImplementedError


def manage(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "django", *arguments]


def database_url() -> str:
    return os.environ["BENCH_DATABASE_URL"].replace("postgres://", "postgresql://")


#: Django has a connection for each thread.
_threads = ThreadPoolExecutor(2)


def in_loop(body: Callable[[int], Any]) -> Callable[[int], Awaitable[None]]:
    """The body for a queue that runs in an event loop: a plain function runs in a thread, of which there are two."""
    if inspect.iscoroutinefunction(body):
        return body

    @wraps(body)
    async def run(number: int) -> None:
        await asyncio.get_running_loop().run_in_executor(_threads, body, number)

    return run


def broker_url(broker: str) -> str:
    return os.environ[f"BENCH_{broker.upper()}_URL"]


def flush_redis() -> None:
    import redis

    with redis.Redis.from_url(broker_url("redis")) as client:
        client.flushdb()


def truncate(tables: Iterable[str]) -> None:
    """Empty these tables, on SQLite one after the other."""
    from django.db import connection, transaction

    with transaction.atomic(), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(f"TRUNCATE {', '.join(tables)} RESTART IDENTITY CASCADE")
            return
        for table in tables:
            cursor.execute(f"DELETE FROM {table}")
