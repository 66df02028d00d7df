"""The part of MariaDB and MySQL in the core."""

from jobs.doors import Extension


class MySQL(Extension):
    instead = {"jobs.store.base.Store": "jobs.contrib.mysql.store.store_of"}
