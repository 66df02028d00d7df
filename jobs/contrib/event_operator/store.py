"""The SQL of what an operator asks of events."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from django.db.models import QuerySet

from jobs import store
from jobs.store import databases

#: It takes one step through the index for each name.
_NAMES = """
WITH RECURSIVE known (name) AS (
    SELECT min(name) FROM jobs_event
    UNION ALL
    SELECT (SELECT min(name) FROM jobs_event WHERE name > known.name) FROM known WHERE known.name IS NOT NULL
)
SELECT name FROM known WHERE name IS NOT NULL LIMIT %s
"""


def names(using: str, limit: int = 10_000) -> list[str]:
    """The names of all events, in one statement."""
    return [name for (name,) in databases.ask(using, _NAMES, limit)]


_PART = "SELECT * FROM (SELECT task, id, state FROM jobs_job WHERE {} LIMIT {}) AS part{}"
_PARTS = (
    "state = 'ready' AND held IS NOT NULL ORDER BY queue, id",
    "state = 'scheduled' ORDER BY run_at",
    "state = 'running'",
    "state IN ('failed', 'cancelled') ORDER BY id DESC",
)
_READY = "state = 'ready' AND held IS NULL AND queue = %s ORDER BY queue, rank, run_at, id"


def handled(using: str, tasks: Collection[str], queues: Collection[str], most: int) -> list[tuple[str, bool, int, Any]]:
    """For each task how many jobs are live, how many failed, and their first ids: ``task, is_failed, number, id``.

    It reads at most ``most`` jobs each: of each queue, of those held back, of those scheduled, of those that run, and
    of the newest that ended without success.
    """
    parts = [*[_READY] * len(queues), *_PARTS]
    union = " UNION ALL ".join(_PART.format(sql, most, number) for number, sql in enumerate(parts))
    # Ids are in the order of time. PostgreSQL has no min() of UUIDs.
    first = "min(CAST(id AS text))" if store.of(using).has_notify else "min(id)"
    sql = f"""SELECT task, state = 'failed', count(*), {first} FROM ({union}) AS found
        WHERE task IN ({", ".join(["%s"] * len(tasks))}) AND state <> 'cancelled' GROUP BY 1, 2"""
    return databases.ask(using, sql, *queues, *tasks)


def any_of(using: str, rows: Mapping[str, QuerySet[Any]]) -> list[str]:
    """The names of those querysets that have a row, in one statement."""
    parts = [queryset.query.get_compiler(using).as_sql() for queryset in rows.values()]
    sql = ", ".join(f"EXISTS (SELECT * FROM ({part}) AS part{number})" for number, (part, _) in enumerate(parts))
    [found] = databases.ask(using, f"SELECT {sql}", *(value for _, params in parts for value in params))
    return [name for name, is_there in zip(rows, found, strict=True) if is_there]
