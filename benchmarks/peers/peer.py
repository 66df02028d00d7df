"""Peer: what an adapter has to say about a queue."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One queue in one manner of use. Its methods are called in a process that has Django set up, but for
    :meth:`settings`."""

    name: str

    #: The server beside the database: ``"redis"``, ``"rabbitmq"`` or none.
    broker: str = ""

    #: ``"postgres"`` or ``"sqlite"``.
    database: str = "postgres"

    #: How many jobs a drain is given at the most: about as many as it does in the time.
    drained: int = 10_000

    #: What it is, where its name does not tell.
    about: str = ""

    #: Does a job exist if and only if the caller's transaction committed?
    is_transactional: ClassVar[bool] = False

    #: Distributions whose versions belong to its figures.
    packages: ClassVar[tuple[str, ...]] = ()

    def servers(self) -> set[str]:
        return {self.broker, self.database} - {"", "sqlite"}

    def settings(self) -> dict[str, Any]:
        """Django's settings; ``INSTALLED_APPS`` come after the project's."""
        return {}

    def task(self, body: Callable[[int], None]) -> Any:
        """The decorator that makes a task of a function."""
        raise NotImplementedError

    def enqueue(self, task: Any, number: int) -> None:
        """In a transaction."""
        raise NotImplementedError

    def bulk(self, task: Any, numbers: Sequence[int]) -> None:
        """In a transaction, as its documentation does it for many."""
        for number in numbers:
            self.enqueue(task, number)

    def purge(self) -> None:
        """Empty it. No worker runs."""

    def workers(self, processes: int) -> list[list[str]]:
        """The commands that start as many processes for bodies."""
        raise NotImplementedError


def manage(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "django", *arguments]


def broker_url(broker: str) -> str:
    return os.environ[f"BENCH_{broker.upper()}_URL"]


def flush_redis() -> None:
    import redis

    with redis.Redis.from_url(broker_url("redis")) as client:
        client.flushdb()


def truncate(tables: Iterable[str]) -> None:
    """Empty these tables of the database; those of SQLite one by one."""
    from django.db import connection, transaction

    with transaction.atomic(), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(f"TRUNCATE {', '.join(tables)} RESTART IDENTITY CASCADE")
            return
        for table in tables:
            cursor.execute(f"DELETE FROM {table}")
