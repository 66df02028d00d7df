"""The part of exchanges in the core, and in what makes jobs of messages."""

from __future__ import annotations

from typing import Any

from jobs.doors import Extension


class Exchanges(Extension):
    instead = {"jobs.calling.calls.queue_name": "jobs.contrib.exchanges.routes.queue_name"}

    def bound(self, app: Any, exchange: str, routing_key: str | None) -> Any:
        from jobs.contrib.exchanges.routes import bound_queue

        return bound_queue(app, exchange, routing_key)
