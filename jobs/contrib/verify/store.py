"""What the rules ask of a database as such."""

from __future__ import annotations

import re
from contextlib import closing
from typing import Any

from django.db import connections

from jobs import store
from jobs.store.sqlite import SQLite

_CONSTRAINT = re.compile(r'\bCONSTRAINT "([^"]+)"')


def constraints(using: str, table: str) -> set[str]:
    """The names of the constraints and indexes that a table has."""
    connection = connections[using]
    with connection.cursor() as cursor:
        if not isinstance(store.of(using), SQLite):
            return set(connection.introspection.get_constraints(cursor, table))
        # Django's introspection parses the definition of every table: a second for all of them.
        cursor.execute("SELECT name, coalesce(sql, '') FROM sqlite_master WHERE tbl_name = %s", [table])
        rows = cursor.fetchall()
    return {name for name, _ in rows}.union(*(_CONSTRAINT.findall(sql) for _, sql in rows))


def may_write(using: str) -> bool:
    """False while a running body keeps every other process from writing: on SQLite it holds the only write lock."""
    connection: Any = connections[using]
    if connection.in_atomic_block or not isinstance(store.of(using), SQLite):
        return True
    # In seconds: longer than the short transactions of maintenance.
    options = connection.get_connection_params() | {"timeout": 0.5}
    with closing(connection.Database.connect(**options)) as own:
        try:
            own.execute("BEGIN IMMEDIATE")
        except connection.Database.OperationalError:
            return False
    return True
