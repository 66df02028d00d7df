"""The part of listening in the core, and whom else it tells."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from jobs.doors import Extension, Thread


class Listening(Extension):
    @property
    def came(self) -> Any:
        from jobs.contrib.listening.news import notify

        return notify

    def threads(self) -> Iterable[Thread]:
        from jobs.contrib.listening.listener import run

        return [run]


class Doors:
    """Who else hears the news."""

    def heard(self, told: Collection[str] | None) -> None:
        """The supervisor was notified of these queues, or ends (None: anything may be new). Wakes its threads."""
