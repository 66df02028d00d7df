"""What queries over 100,000 events, or jobs of them, read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from django.db import connection
from django.db.models import Model

from tests.helpers.plans import ROWS, asked_by

#: What a query may read that does not grow with what waits.
SOME = 3000


def multiply(model: type[Model], key: str, **more: str) -> None:
    """Make 100,000 rows of the one that there is, each with a key of its own, and 5,000 order keys."""
    if connection.vendor == "mysql":
        pytest.skip("the plans of events are read on SQLite and PostgreSQL")
    new_key = "gen_random_uuid()" if connection.vendor == "postgresql" else "lower(hex(randomblob(16)))"
    names = [field.column for field in model._meta.concrete_fields if field.column not in (key, "id")]
    each = {"order_key": "order_key || (i %% 5000)", "number": "number + i", **more}
    values = [each.get(name, name) for name in names]
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS}) "
            f"INSERT INTO {model._meta.db_table} ({key}, {', '.join(names)}) "
            f"SELECT {new_key}, {', '.join(values)} FROM {model._meta.db_table}, n",
            [],
        )


def nodes(plan: dict) -> Iterator[dict]:
    yield plan
    for each in plan.get("Plans", ()):
        yield from nodes(each)


def rows_read(query: Callable[[], object]) -> int:
    """How many rows, about, a query's statements read. SQLite counts the steps of its machine: ten a row, about."""
    if connection.vendor == "sqlite":
        connection.ensure_connection()
        steps: list[int] = []
        connection.connection.set_progress_handler(lambda: steps.append(100), 100)
        query()
        connection.connection.set_progress_handler(None, 100)
        return sum(steps) // 10
    found = 0
    for sql, params in asked_by(query):
        if sql.lstrip().startswith(("SELECT", "WITH")):
            with connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", params)
                [(text,)] = cursor.fetchall()
            for node in nodes((json.loads(text) if isinstance(text, str) else text)[0]["Plan"]):
                if "Scan" in node["Node Type"]:
                    read = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
                    found += read * node["Actual Loops"]
    return found
