"""Rows that break a rule; of those that should have recovered by now, whether somebody does something about them."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import closing
from typing import Any

from django.db import connections
from django.db.models import QuerySet

from jobs.census import MOST
from jobs.conf import conf
from jobs.models import Job
from jobs.verify.rules import Rows, Rule, View

#: What changes about a job when somebody does something about it.
VERSION = ("state", "lease", "run_at")

#: Seconds to wait for SQLite's write lock; the short transactions of maintenance take less.
LOCK_WAIT = 0.5


def first(rows: Rows, limit: int) -> dict[Hashable, list[Any]]:
    """The first rows: their keys, and what would change about them."""
    found: dict[Hashable, list[Any]] = {}
    for part in rows:
        if isinstance(part, QuerySet):
            part = part.values_list("pk", *(VERSION if part.model is Job else ()))
        found |= {key: version for key, *version in part[: limit - len(found)]}
    return found


def count(rows: Rows) -> int:
    """Nobody counts beyond :data:`MOST`."""
    return sum(part[:MOST].count() if isinstance(part, QuerySet) else len(part) for part in rows)


class Suspicion:
    """The rows of one database that break a rule, by the times that are written in them.

    Right after an outage all times are old, and nothing is broken. So, under a bound, they are violations only if
    nobody does anything about them while a worker could.
    """

    def __init__(self, rule: Rule, alias: str, view: View) -> None:
        self.rule, self.alias, self.bound = rule, alias, rule.bound()
        broken = self._broken(view)
        #: A sample of them.
        self.rows = first(broken, conf().BATCH)
        self.count = count(broken) if len(self.rows) == conf().BATCH else len(self.rows)
        self.violations = self.count

    def look(self, view: View) -> None:
        """Forget the rows that something was done about."""
        now = first([part.filter(pk__in=list(self.rows)) for part in self._broken(view)], len(self.rows))
        still = {key: version for key, version in self.rows.items() if now.get(key) == version}
        if self.count <= conf().BATCH:
            self.violations = len(still)
        elif len(still) < len(self.rows):
            # More than one round of maintenance: the last ones wait for the first, and these move on.
            self.violations = 0
        self.rows = still

    def waiting(self, view: View) -> Rows:
        """All rows that wait to be put right."""
        if self.rule.waiting is not None:
            return self.rule.waiting(self.alias)
        return self.rule.broken(view, self.alias, self.rule.quiet()) if self.bound else []

    def _broken(self, view: View) -> Rows:
        """Under a bound nothing if nobody can be blamed: there is no worker, or no way for it to put things right."""
        if self.bound and view.worked_for < self.bound:
            return []
        broken = self.rule.broken(view, self.alias, self.bound)
        return [] if self.bound and first(broken, 1) and not _is_writable(self.alias) else broken


def _is_writable(using: str) -> bool:
    """SQLite has one write lock, which a body holds as long as it runs: nobody else can do anything meanwhile."""
    connection: Any = connections[using]
    if connection.vendor != "sqlite" or connection.in_atomic_block:
        return True
    options = connection.get_connection_params() | {"timeout": LOCK_WAIT}
    with closing(connection.Database.connect(**options)) as own:
        try:
            own.execute("BEGIN IMMEDIATE")
        except connection.Database.OperationalError:
            return False
    return True
