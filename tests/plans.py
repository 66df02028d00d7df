"""Plans of queries at 100,000 rows of history."""

from __future__ import annotations

from django.db import connection

ROWS = 100_000

#: Rows that a query may pass over.
FEW = ROWS // 8


def asked_by(query: object) -> list[tuple[str, object]]:
    """The statements, each with its parameters: SQLite may have another plan for a value that stands in the text."""
    asked: list[tuple[str, object]] = []

    def note(execute, sql, params, many, context):
        asked.append((sql, params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        query()  # type: ignore[operator]
    return asked


def plan(sql: str, params: object = None) -> str:
    with connection.cursor() as cursor:
        # What reads may be done again, and says how much it read.
        analyze = "(ANALYZE) " if sql.startswith("SELECT") else ""
        explain = "EXPLAIN QUERY PLAN " if connection.vendor == "sqlite" else f"EXPLAIN {analyze}"
        cursor.execute(explain + sql, params)
        return "\n".join(" ".join(str(value) for value in row) for row in cursor.fetchall())
