"""The databases that jobs live in: all SQL, and all that asks which database it is.

:func:`of` gives the store of one. ``base.py`` says what each can do, in words that every database knows.
"""

from __future__ import annotations

from functools import cache

from django.db import connections

from jobs.store.base import Store
from jobs.store.postgresql import PostgreSQL
from jobs.store.sqlite import SQLite

_KINDS: dict[str, type[Store]] = {"postgresql": PostgreSQL, "sqlite": SQLite}


def of(using: str) -> Store:
    """The store of a database, by its alias."""
    return _of(using, connections[using].vendor)


@cache
def _of(using: str, vendor: str) -> Store:
    return _KINDS.get(vendor, Store)(using)
