"""The part of the shared connections in the core."""

from __future__ import annotations

from collections.abc import Iterable

from jobs.doors import Extension, Thread


class SharedConnections(Extension):
    instead = {
        "jobs.maintenance.turn": "jobs.contrib.shared_connections.turns.turn",
        "jobs.maintenance.give_way": "jobs.contrib.shared_connections.turns.give_way",
    }

    def threads(self) -> Iterable[Thread]:
        from jobs.contrib.shared_connections import turns

        # In the supervisor, before its threads begin.
        turns.share()
        return ()
