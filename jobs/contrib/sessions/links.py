"""Lost links: both ends of a worker's connection to PostgreSQL notice that the other machine is gone."""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from jobs.conf import conf
from jobs.store import databases

#: Options of a worker's connections to PostgreSQL (libpq): it notices a dead link in about 20 seconds, and not in
#: hours. The project's settings win. ``tcp_user_timeout`` is in milliseconds, the rest in seconds.
KEEPALIVES = {"idle": 5, "interval": 5, "count": 3}
LINK = {"connect_timeout": 10, "tcp_user_timeout": 20_000} | {f"keepalives_{k}": v for k, v in KEEPALIVES.items()}


def watch() -> None:
    """Call it before the process connects to a database."""
    for alias in conf().DATABASES:
        if connections[alias].vendor == "postgresql":
            settings = connections.settings[alias]
            settings["OPTIONS"] = {**LINK, **settings["OPTIONS"]}
    connection_created.connect(_watch_from_the_server, dispatch_uid="jobs.contrib.sessions.links")


def _watch_from_the_server(connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    """A server that does not notice keeps the transaction of the dead machine, and its locks."""
    if connection.vendor == "postgresql" and connection.alias in conf().DATABASES:
        # The server sends no keepalives while its own answer is under way: then the timeout decides.
        values = {"user_timeout": LINK["tcp_user_timeout"]} | {f"keepalives_{k}": v for k, v in KEEPALIVES.items()}
        calls = [f"set_config('tcp_{name}', '{value}', false)" for name, value in values.items()]
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {', '.join(calls)}")


def revive(alias: str) -> None:
    """Drop a connection that was ended while nothing used it, before a transaction begins that cannot be tried again.

    The server does that, or a pooler, or a machine between. Call it after a wait: it asks the server.
    """
    connection = connections[alias]
    is_free = connection.connection is not None and not connection.in_atomic_block
    if is_free and connection.get_autocommit() and not connection.is_usable():
        databases.drop(alias)
