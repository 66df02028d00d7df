"""The part of psycopg 3 in the core: a store and a session of PostgreSQL that prepare statements."""

from jobs.doors import Extension


class Psycopg3(Extension):
    instead = {
        "jobs.store.postgresql.PostgreSQL": "jobs.contrib.psycopg3.store.Prepared",
        "jobs.store.sessions.Session": "jobs.contrib.psycopg3.session.opened",
    }
