"""Huey, on Redis or on a SQLite file of its own, which is as durable as the project's database."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from benchmarks.peers.peer import Peer, broker_url, manage


@dataclass(frozen=True, kw_only=True)
class Huey(Peer):
    packages: ClassVar[tuple[str, ...]] = ("huey",)

    def settings(self) -> dict[str, Any]:
        huey: dict[str, Any] = {"name": "benchmarks", "immediate": False, "results": False}
        if self.broker:
            huey |= {"huey_class": "huey.RedisHuey", "url": broker_url(self.broker)}
        else:
            filename = os.environ["BENCH_DATABASE_URL"].removeprefix("sqlite:///") + ".huey"
            huey |= {"huey_class": "huey.SqliteHuey", "filename": filename, "fsync": True}
        return {"INSTALLED_APPS": ["huey.contrib.djhuey"], "HUEY": huey}

    def task(self, body: Callable[[int], None]) -> Any:
        from huey.contrib.djhuey import on_commit_task

        return on_commit_task()(body)

    def enqueue(self, task: Any, number: int) -> None:
        task(number)

    def purge(self) -> None:
        from huey.contrib.djhuey import HUEY

        HUEY.storage.flush_all()

    def workers(self, processes: int) -> list[list[str]]:
        return [manage("run_huey", "-w", str(processes), "-k", "process", "-n", "-q")]


PEERS = (
    Huey(name="huey-redis", broker="redis"),
    Huey(name="huey-sqlite", database="sqlite", about="a file of its own beside the database's", drained=5_000),
)
