"""Which database this is. A restored copy carries the mark of its original, and its jobs wait until it is adopted.

A copy of production holds production's ``ready`` jobs. A worker that is pointed at it would send all their mails
a second time. So the first worker writes into the database which database it is, and every worker compares.
"""

import ctypes
import os
import struct
from typing import Any

from django.db import connections

from jobs.conf import conf
from jobs.database import databases
from jobs.models import Instance


class NotAdopted(Exception):
    """The database is a copy of another one, and nobody has said yet that its jobs should run."""


def mark_of(alias: str) -> str:
    """What this database is known by; the same at every start, and another one for a copy.

    * ``JOBS["INSTANCE"]``, where it is set. Only it tells the copy of a disk (a snapshot, a clone of a managed
      database) from its original, and stays when a database moves (to another server, over ``pg_upgrade``).
    * PostgreSQL: the cluster's identifier and the database's oid. A restored dump and a copy by ``TEMPLATE`` get
      others; a promoted replica keeps both. A role that may not read the identifier falls back on the oids of the
      database and of our table, which two clusters may have in common by chance.
    * SQLite: the file's inode and time of birth (else its path). A copied file has others, a moved one keeps them.
    * MySQL: the server's uuid and the database's name. Others: host and name of the settings.
    """
    if name := conf().INSTANCE:
        return f"instance:{name}"
    connection = connections[alias]
    if connection.vendor == "postgresql":
        parts = _identify_postgresql(alias)
    elif connection.vendor == "sqlite":
        parts = _identify_sqlite(alias)
    elif connection.vendor == "mysql" and not getattr(connection, "mysql_is_mariadb", False):
        [parts] = databases.ask(alias, "SELECT @@server_uuid, DATABASE()")
    else:
        settings = connection.settings_dict
        parts = (settings["HOST"] or "localhost", settings["NAME"])
    return ":".join(map(str, (connection.vendor, *parts)))[:255]


def check_all() -> None:
    """Compare the mark of each job database with the database, or raise ``NotAdopted``; mark it if nobody did yet.

    Race: of several workers that start on a fresh database, one inserts the mark and the others read it.
    """
    for alias in conf().DATABASES:
        mine = mark_of(alias)
        instance, _ = Instance.objects.using(alias).get_or_create(pk=1, defaults={"mark": mine})
        if instance.mark != mine:
            raise NotAdopted(
                f"the database {alias!r} is marked as {instance.mark!r}, and it is {mine!r}: it is a copy, or was "
                "moved. Its jobs may run at the original as well: none of them runs here until you say `manage.py jobs "
                "adopt` (--dry-run tells how many there are, --cancel cancels them)."
            )


def marks(alias: str) -> dict[str, Any]:
    """What the database is marked as (None: no worker ever was here), what it is, and whether its jobs run."""
    marked, real = Instance.objects.using(alias).filter(pk=1).values_list("mark", flat=True).first(), mark_of(alias)
    return {"marked_as": marked, "is": real, "adopted": marked in (None, real)}


def _identify_postgresql(alias: str) -> tuple[Any, ...]:
    database = "FROM pg_database WHERE datname = current_database()"
    may_read = "has_function_privilege(to_regprocedure('pg_control_system()')::oid, 'EXECUTE')"
    # Everybody may read the identifier, unless somebody took that away. Asked first: a statement that is refused would
    # break a transaction around it.
    if databases.ask(alias, f"SELECT 1 WHERE {may_read}"):
        found = f"system_identifier, (SELECT oid {database}) FROM pg_control_system()"
    else:
        found = f"'oids', oid, to_regclass('jobs_instance')::oid {database}"
    [parts] = databases.ask(alias, f"SELECT {found}")
    return tuple(parts)


def _identify_sqlite(alias: str) -> tuple[Any, ...]:
    [[path]] = databases.ask(alias, "SELECT file FROM pragma_database_list WHERE name = 'main'")
    path = path and os.path.realpath(path)
    return (os.stat(path).st_ino, _born(path) or path) if path else ("memory",)


def _born(path: str) -> str | None:
    """When the file came into being, which no ``cp -a`` keeps; None if this system does not say.

    Python has ``os.statx`` from 3.15 on.
    """
    if (seconds := getattr(os.stat(path), "st_birthtime", None)) is not None:
        return str(seconds)
    statx = getattr(ctypes.CDLL(None), "statx", None)
    answer = ctypes.create_string_buffer(256)
    at_fdcwd, wanted = -100, 0x800
    if statx is None or statx(at_fdcwd, os.fsencode(path), 0, wanted, answer) != 0:
        return None
    (known,), (seconds, nanoseconds) = struct.unpack_from("=I", answer), struct.unpack_from("=qI", answer, 0x50)
    return f"{seconds}.{nanoseconds:09}" if known & wanted else None
