"""Which database this is. A restored copy carries the mark of its original, and its jobs wait until it is adopted.

A copy of production holds production's ``ready`` jobs. A worker that is pointed at it would send all their mails
a second time. So the first worker writes the identity of the database into it, and every worker compares.
"""

import ctypes
import os
import struct
from typing import Any

from jobs import store
from jobs.conf import conf
from jobs.contrib.adoption import store as own
from jobs.contrib.adoption.models import Instance
from jobs.store.base import Store
from jobs.store.identity import Identity, NotAdopted
from jobs.store.postgresql import PostgreSQL
from jobs.store.sqlite import SQLite


def mark_of(alias: str) -> str:
    """The mark of this database: the same at every start, and a different one for a copy.

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
    at = store.of(alias)
    if isinstance(at, PostgreSQL):
        parts = own.of_postgresql(at)
    else:
        parts = _of_sqlite(at) if isinstance(at, SQLite) else own.of_server(at)
    return ":".join(map(str, (at.name, *parts)))[:255]


class Marked(Identity):
    def check(self) -> None:
        """Compare the mark with the database; mark it if it has no mark.

        Race: several workers start on a fresh database. One of them inserts the mark, and the rest read it.
        """
        mine = mark_of(self.alias)
        instance, _ = Instance.objects.using(self.alias).get_or_create(pk=1, defaults={"mark": mine})
        if instance.mark != mine:
            raise NotAdopted(
                f"the database {self.alias!r} is marked as {instance.mark!r}, and it is {mine!r}: it is a copy, or was "
                "moved. Its jobs may run at the original as well: none of them runs here until you say `manage.py jobs "
                "adopt` (--dry-run tells how many there are, --cancel cancels them)."
            )

    def marks(self) -> dict[str, Any]:
        marked = Instance.objects.using(self.alias).filter(pk=1).values_list("mark", flat=True).first()
        real = mark_of(self.alias)
        return {"marked_as": marked, "is": real, "adopted": marked in (None, real)}


def _of_sqlite(at: Store) -> tuple[Any, ...]:
    path = os.path.realpath(found) if (found := own.file_of(at)) else ""
    return (os.stat(path).st_ino, _born(path) or path) if path else ("memory",)


def _born(path: str) -> str | None:
    """When the file was created, which ``cp -a`` does not keep; None if this system does not say.

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
