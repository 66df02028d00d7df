"""The part of MariaDB and MySQL in the core."""

from jobs.doors import Extension


class MySQL(Extension):
    stores = {"mysql": "jobs.contrib.mysql.store.MySQL"}
