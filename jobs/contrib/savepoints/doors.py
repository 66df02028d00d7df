"""The part of the spared savepoints in the core."""

from jobs.doors import Extension


class Savepoints(Extension):
    instead = {"jobs.store.postgresql.PostgreSQL": "jobs.contrib.savepoints.store.Sparing"}
