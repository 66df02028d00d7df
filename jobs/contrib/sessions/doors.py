"""The part of the server's sessions in the core."""

from typing import Any

from jobs.doors import Extension


class Sessions(Extension):
    instead = {
        "jobs.store.postgresql.PostgreSQL": "jobs.contrib.sessions.store.WithSessions",
        "jobs.maintenance.rescue.end_sessions": "jobs.contrib.sessions.zombies.end_backends",
    }

    def starting(self, worker: Any) -> None:
        from jobs.contrib.sessions import links

        links.watch()
