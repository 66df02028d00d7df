"""Dramatiq with django-dramatiq: two processes of eight threads, which is its default."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from benchmarks.peers.peer import Peer, broker_url, flush_redis, manage


@dataclass(frozen=True, kw_only=True)
class Dramatiq(Peer):
    packages: ClassVar[tuple[str, ...]] = ("dramatiq", "django-dramatiq")

    def settings(self) -> dict[str, Any]:
        names = {"redis": "redis.RedisBroker", "rabbitmq": "rabbitmq.RabbitmqBroker"}
        # Its client takes "//" for a host without a name.
        url = broker_url(self.broker)
        if self.broker == "rabbitmq":
            url = url.removesuffix("//") + "/%2F?heartbeat=0"
        broker = {
            "BROKER": f"dramatiq.brokers.{names[self.broker]}",
            "OPTIONS": {"url": url},
            "MIDDLEWARE": [
                *(f"dramatiq.middleware.{name}" for name in ("AgeLimit", "TimeLimit", "Callbacks", "Retries")),
                "django_dramatiq.middleware.DbConnectionsMiddleware",
            ],
        }
        return {"INSTALLED_APPS": ["django_dramatiq"], "DRAMATIQ_BROKER": broker}

    def task(self, body: Callable[[int], None]) -> Any:
        import dramatiq

        return dramatiq.actor(body)

    def enqueue(self, task: Any, number: int) -> None:
        from django.db import transaction

        transaction.on_commit(lambda: task.send(number))

    def purge(self) -> None:
        import dramatiq

        if self.broker == "redis":
            flush_redis()
        else:
            dramatiq.get_broker().flush_all()

    def workers(self, processes: int) -> list[list[str]]:
        return [manage("rundramatiq", "--processes", str(processes), "--threads", "8")]


PEERS = (Dramatiq(name="dramatiq-redis", broker="redis"), Dramatiq(name="dramatiq-rabbitmq", broker="rabbitmq"))
