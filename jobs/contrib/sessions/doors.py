"""The part of the server's sessions in the core."""

from jobs.doors import Extension


class Sessions(Extension):
    instead = {"jobs.store.postgresql.PostgreSQL": "jobs.contrib.sessions.store.WithSessions"}
