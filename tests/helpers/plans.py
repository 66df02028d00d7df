"""Plans of queries at 100,000 rows of history."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable

import pytest
from django.db import connection
from django.utils import timezone

from jobs.models import Job, Marker, Node

ROWS = 100_000

#: Rows that a query may pass over.
FEW = ROWS // 8


def make_history() -> Node:
    """100,000 finished jobs, one in a second, and a few of each live state, with fresh statistics."""
    if connection.vendor == "mysql":
        pytest.skip("plans are read on SQLite and PostgreSQL")
    now = timezone.now()
    template = {"task": "tests.tasks.noop", "queue": "celery"}
    node = Node.objects.create(hostname="h", pid=1)
    before = now - datetime.timedelta(days=2)
    first = Job.objects.create(**template, state="succeeded", run_at=before, finished_at=before)
    names = [field.column for field in Job._meta.concrete_fields if field.column != "id"]
    made = int(before.timestamp() * 1000)
    if connection.vendor == "postgresql":
        earlier = "{0} - i * interval '1 second'"
        new_id = f"(lpad(to_hex({made} - i * 1000), 12, '0') || '70008' || lpad(to_hex(i), 15, '0'))::uuid"
    else:
        earlier = "strftime('%%Y-%%m-%%d %%H:%%M:%%f', {0}, '-' || i || ' seconds')"
        new_id = f"printf('%%012x70008%%015x', {made} - i * 1000, i)"
    values = ", ".join(earlier.format(name) if name in ("run_at", "finished_at") else name for name in names)
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS}) "
            f"INSERT INTO jobs_job (id, {', '.join(names)}) SELECT {new_id}, {values} FROM jobs_job, n",
            [],
        )
        new_id = "gen_random_uuid()::text" if connection.vendor == "postgresql" else "lower(hex(randomblob(16)))"
        if "jobs_chord" in connection.introspection.table_names():
            parts = "INSERT INTO jobs_chord_part (chord_id, task_id, place, result, error)"
            chord = "INSERT INTO jobs_chord (id, made_at, size, done, failed) SELECT %s, %s, 1, 0, 0"
            cursor.execute(chord, ["one", now])
            cursor.execute(f"{parts} SELECT 'one', {new_id}, '[0]', NULL, '' FROM jobs_job")
    live = [Job(**template, state="ready") for n in range(20)]
    live += [Job(**template, state="scheduled", expires_at=now if n % 2 else None) for n in range(20)]
    live += [Job(**template, state="running", node=node, token=1, started_at=now) for _ in range(20)]
    live += [Job(**template, state="failed", finished_at=now, error={"type": "ValueError"}) for _ in range(20)]
    Job.objects.bulk_create(live)
    Marker.objects.create(key="k", kind="task", job=first.pk)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    return node


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


def assert_indexed(name: str, query: Callable[[], object]) -> None:
    """Each statement of the query uses an index, and reads few rows beside those that it finds."""
    asked = asked_by(query)
    statements = [(sql, params) for sql, params in asked if sql.startswith(("SELECT", "UPDATE", "DELETE"))]
    assert statements, name
    for sql, params in statements:
        text = plan(sql, params)
        assert not re.search("Seq Scan on jobs_(job|chord_part)", text), f"{name}: {sql}\n{text}"
        read = sum(map(int, re.findall(r"Rows Removed by Filter: (\d+)", text)))
        assert read < FEW, f"{name}: {sql}\n{text}"
        lines = (line for line in text.splitlines() if re.search("SCAN jobs_(job|chord_part)", line))
        scans = [line for line in lines if "USING" not in line]
        assert not scans, f"{name}: {sql}\n{text}"
