"""Which database this is, and whether its jobs may run. An extension can tell a copy from its original."""

from typing import Any

from jobs import extensions
from jobs.conf import conf


class NotAdopted(Exception):
    """The database is a copy of another one, and its jobs were not activated yet."""


class Identity:
    """The identity of one job database, by its alias. Without an extension it is never a copy."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    def check(self) -> None:
        """Raise ``NotAdopted`` if its jobs may not run."""

    def marks(self) -> dict[str, Any]:
        """What it is marked as (None: no worker ever used it), what it is, and whether its jobs run."""
        return {"marked_as": None, "is": self.alias, "adopted": True}


def check_all() -> None:
    for alias in conf().DATABASES:
        extensions.instead(Identity)(alias).check()


def marks(alias: str) -> dict[str, Any]:
    found: dict[str, Any] = extensions.instead(Identity)(alias).marks()
    return found
