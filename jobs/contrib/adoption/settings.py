"""What it reads of ``settings.JOBS``."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    #: Which installation this is: ``"production"``, ``"staging"``. Workers refuse a database that another one
    #: marked, until ``manage.py jobs adopt``. None: the database is known by its server's own identifiers, which a
    #: copy of a disk (a snapshot, the clone of a managed database) has in common with its original.
    INSTANCE: str | None = None


#: As those of ``jobs.conf``.
RULES = {
    "INSTANCE": (".{1,200}", "a name of at most 200 characters, or None, not {!r}"),
}
