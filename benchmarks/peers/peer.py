"""What an adapter has to say about a queue."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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

    #: What it is, if its name does not say so.
    about: str = ""

    #: Whether a job exists if and only if the caller's transaction committed.
    is_transactional: ClassVar[bool] = False

    #: Whether it has tasks of several steps (:meth:`workflow`).
    has_workflows: ClassVar[bool] = False

    #: The versions of these distributions are reported with its figures.
    packages: ClassVar[tuple[str, ...]] = ()

    def servers(self) -> set[str]:
        return {self.broker, self.database} - {"", "sqlite"}

    def settings(self) -> dict[str, Any]:
        """Its Django settings; its ``INSTALLED_APPS`` are added to those of the project."""
        return {}

    def task(self, body: Callable[[int], None]) -> Any:
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
