"""Django-Q2 with its database broker. It is tuned: large batches, and no rows for results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from benchmarks.peers.peer import Peer, manage, truncate


@cache
def _broker() -> Any:
    from django_q.brokers import get_broker

    return get_broker()


@dataclass(frozen=True, kw_only=True)
class DjangoQ2(Peer):
    drained: int = 5_000
    is_transactional: ClassVar[bool] = True
    packages: ClassVar[tuple[str, ...]] = ("django-q2",)

    def settings(self) -> dict[str, Any]:
        cluster = {"name": "benchmarks", "orm": "default", "workers": 2, "timeout": 60, "retry": 120}
        tuned = {"bulk": 50, "queue_limit": 200, "recycle": 100_000, "save_limit": -1, "log_level": "WARNING"}
        return {"INSTALLED_APPS": ["django_q"], "Q_CLUSTER": cluster | tuned}

    def task(self, body: Callable[[int], None]) -> Any:
        return body

    def enqueue(self, task: Any, number: int) -> None:
        from django_q.tasks import async_task

        async_task(f"{task.__module__}.{task.__name__}", number, broker=_broker())

    def purge(self) -> None:
        truncate(["django_q_ormq", "django_q_task"])

    def workers(self, processes: int) -> list[list[str]]:
        if processes != 2:
            raise NotImplementedError("the cluster's size is a setting: 2")
        return [manage("qcluster")]


PEERS = (DjangoQ2(name="django-q2", about="its database broker, tuned"),)
