"""Procrastinate: a queue in PostgreSQL, woken by NOTIFY."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from benchmarks.peers.peer import Peer, manage, truncate


@dataclass(frozen=True, kw_only=True)
class Procrastinate(Peer):
    drained: int = 2_500
    is_transactional: ClassVar[bool] = True
    has_async: ClassVar[bool] = True
    packages: ClassVar[tuple[str, ...]] = ("procrastinate",)

    def settings(self) -> dict[str, Any]:
        return {"INSTALLED_APPS": ["procrastinate.contrib.django"]}

    def task(self, body: Callable[[int], Any]) -> Any:
        from procrastinate.contrib.django import app

        return app.task(body)

    def enqueue(self, task: Any, number: int) -> None:
        task.defer(number=number)

    def bulk(self, task: Any, numbers: Sequence[int]) -> None:
        task.batch_defer(*({"number": number} for number in numbers))

    def purge(self) -> None:
        truncate(f"procrastinate_{name}" for name in ("jobs", "events", "workers", "periodic_defers"))

    def workers(self, processes: int) -> list[list[str]]:
        at_once = str(self.at_once or 1)
        return [manage("procrastinate", "worker", "--concurrency", at_once) for _ in range(processes)]


PEERS = (
    Procrastinate(name="procrastinate"),
    Procrastinate(name="procrastinate-async", at_once=1000, about="1,000 async bodies at once in each process"),
)
