"""Which database this is. A restored copy carries the mark of its original, and its jobs wait until it is adopted.

A copy of production holds production's ``ready`` jobs. A worker that is pointed at it would send all their mails
a second time. So the first worker writes into the database which database it is, and every worker compares.
"""

from typing import Any

from django.db import connections

from jobs import store
from jobs.conf import conf
from jobs.models import Instance


class NotAdopted(Exception):
    """The database is a copy of another one, and its jobs were not activated yet."""


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
    return ":".join(map(str, (connections[alias].vendor, *store.of(alias).identify())))[:255]


def check_all() -> None:
    """Compare the mark of each job database with the database, or raise ``NotAdopted``; mark it if it has no mark.

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
