"""The part of the messages in the core: what Celery's worker calls for one of them; and what they ask others."""

from __future__ import annotations

from typing import Any

from jobs.doors import Extension


class Doors:
    """Who else knows where a message came from."""

    def bound(self, app: Any, exchange: str, routing_key: str | None) -> Any:
        """The app's queue that gets what is sent to this exchange with this routing key; or None."""


class Messages(Extension):
    instead = {"jobs.execution.pipeline.receive": "jobs.contrib.messages.receiving.receive"}
