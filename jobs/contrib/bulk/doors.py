"""The part of bulk inserts in the core."""

from jobs.doors import Extension


class Bulk(Extension):
    instead = {"jobs.store.postgresql.PostgreSQL": "jobs.contrib.bulk.store.Copying"}
