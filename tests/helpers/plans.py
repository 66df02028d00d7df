"""Plans of queries at 100,000 rows of history.

MariaDB says how many rows each statement has read, by whatever plan: that is held against the same bound.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs.models import Job, Marker, Node
from tests.helpers import driver

ROWS = 100_000

#: Rows that a query may pass over.
FEW = ROWS // 8


def make_history() -> Node:
    """100,000 finished jobs, one in a second, and a few of each live state, with fresh statistics."""
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
    elif connection.vendor == "mysql":
        earlier = "{0} - INTERVAL i SECOND"
        new_id = f"CONCAT(LPAD(LOWER(HEX({made} - i * 1000)), 12, '0'), '70008', LPAD(LOWER(HEX(i)), 15, '0'))"
    else:
        earlier = "strftime('%%Y-%%m-%%d %%H:%%M:%%f', {0}, '-' || i || ' seconds')"
        new_id = f"printf('%%012x70008%%015x', {made} - i * 1000, i)"
    quote = connection.ops.quote_name
    values = ", ".join(
        earlier.format(name) if name in ("run_at", "finished_at") else f"jobs_job.{quote(name)}" for name in names
    )
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO jobs_job (id, {', '.join(map(quote, names))}) "
            f"SELECT {new_id}, {values} FROM jobs_job, {numbers(ROWS)}",
            [],
        )
        new_ids = {"postgresql": "gen_random_uuid()::text", "mysql": "UUID()"}
        new_id = new_ids.get(connection.vendor, "lower(hex(randomblob(16)))")
        if "jobs_chord" in connection.introspection.table_names():
            parts = "INSERT INTO jobs_chord_part (chord_id, task_id, place, result, error)"
            chord = "INSERT INTO jobs_chord (id, made_at, size, done, failed) SELECT %s, %s, %s, 0, 0"
            cursor.execute(chord, ["one", now, ROWS])
            cursor.execute(f"{parts} SELECT 'one', {new_id}, '[0]', NULL, '' FROM jobs_job")
    live = [Job(**template, state="ready") for n in range(20)]
    live += [Job(**template, state="scheduled", expires_at=now if n % 2 else None) for n in range(20)]
    live += [Job(**template, state="running", node=node, token=1, started_at=now) for _ in range(20)]
    live += [Job(**template, state="failed", finished_at=now, error={"type": "ValueError"}) for _ in range(20)]
    Job.objects.bulk_create(live)
    Marker.objects.create(key="k", kind="task", job=first.pk)
    analyze("jobs_job", *({"jobs_chord_part"} & set(connection.introspection.table_names())))
    return node


def numbers(last: int) -> str:
    """A part of a FROM: the numbers from 1 as ``i``."""
    if connection.vendor == "mysql":
        return f"(SELECT seq AS i FROM seq_1_to_{last}) AS n"
    return f"(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {last}) SELECT i FROM n) AS n"


def analyze(*tables: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE TABLE {', '.join(tables)}" if connection.vendor == "mysql" else "ANALYZE")


def rows_read() -> int:
    """How many rows this session of MariaDB has read, also those that its indexes rejected."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS WHERE Variable_name LIKE 'Handler_read%' OR Variable_name LIKE '%icp_att%'")
        return sum(int(value) for _, value in cursor.fetchall())


def asked_by(query: object, few: int = FEW) -> list[tuple[str, object]]:
    """The statements, each with its parameters: SQLite may have another plan for a value that stands in the text."""
    asked: list[tuple[str, object]] = []

    def note(execute, sql, params, many, context):
        asked.append((sql, params))
        if connection.vendor != "mysql" or sql.startswith("SHOW"):
            return execute(sql, params, many, context)
        before = rows_read()
        found = execute(sql, params, many, context)
        read = rows_read() - before
        assert read < few, f"{read} rows were read: {sql}\n{plan(sql, params)}"
        return found

    with connection.execute_wrapper(note):
        query()  # type: ignore[operator]
    return asked


def plan(sql: str, params: object = None) -> str:
    with connection.cursor() as cursor:
        # What reads may be done again, and says how much it read.
        analyze = "(ANALYZE) " if sql.startswith("SELECT") else ""
        explain = {"sqlite": "EXPLAIN QUERY PLAN ", "mysql": "EXPLAIN "}.get(connection.vendor, f"EXPLAIN {analyze}")
        cursor.execute(explain + sql, params)
        return "\n".join(" ".join(str(value) for value in row) for row in cursor.fetchall())


def read_whole(text: str) -> list[str]:
    """The tables of jobs and parts, or their partitions, that a plan of PostgreSQL reads although they are large."""
    found = set(re.findall(r"Seq Scan on (jobs_(?:job|chord_part)\w*)", text))
    with connection.cursor() as cursor:
        for table in sorted(found):
            cursor.execute(f"SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT {FEW}) AS few")
            if cursor.fetchone()[0] < FEW:
                found.remove(table)
    return sorted(found)


def assert_indexed(name: str, query: Callable[[], object]) -> None:
    """Each statement of the query uses an index, and reads few rows beside those that it finds."""
    asked = asked_by(query)
    statements = [(sql, params) for sql, params in asked if sql.startswith(("SELECT", "UPDATE", "DELETE"))]
    assert statements, name
    for sql, params in statements:
        text = plan(sql, params)
        assert not read_whole(text), f"{name}: {sql}\n{text}"
        read = sum(map(int, re.findall(r"Rows Removed by Filter: (\d+)", text)))
        assert read < FEW, f"{name}: {sql}\n{text}"
        lines = (line for line in text.splitlines() if re.search("SCAN jobs_(job|chord_part)", line))
        scans = [line for line in lines if "USING" not in line]
        assert not scans, f"{name}: {sql}\n{text}"


def explained(sql: str, values: object = None) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {sql}", values)
        return "\n".join(row[0] for row in cursor.fetchall())


TYPES = {
    "node": "uuid",
    "token": "bigint",
    "backend": "int",
    "rank": "smallint",
    "run_at": "timestamptz",
    "id": "uuid",
    "lease": "int",
    "before": "bigint",
    "what": "text",
    "channel": "text",
    "told": "text",
    "state": "text",
    "held": "boolean",
    "waits_for": "text",
}


def explained_generically(sql: str, values: dict) -> str:
    """As the server plans what is prepared, without a look at the values."""
    names = [name for name in TYPES if f"%({name})s" in sql]
    for number, name in enumerate(names, 1):
        sql = sql.replace(f"%({name})s", f"${number}")
    with connection.cursor() as cursor:
        cursor.execute("SET plan_cache_mode = force_generic_plan")
        try:
            types = ", ".join(TYPES[name] for name in names)
            cursor.execute(f"PREPARE explained ({types}) AS {sql.replace('%%', '%')}")
            marks = ", ".join(["%s"] * len(names))
            cursor.execute(f"EXPLAIN EXECUTE explained ({marks})", [values[name] for name in names])
            return "\n".join(row[0] for row in cursor.fetchall())
        finally:
            cursor.execute("DEALLOCATE ALL")
            cursor.execute("RESET plan_cache_mode")


def statements_of(action) -> list[str]:
    """What it reads and writes of jobs: what goes past Django's cursor, then the rest as Django says it."""
    asked: list[str] = []
    with CaptureQueriesContext(connection) as queries, pytest.MonkeyPatch.context() as patch:
        if connection.vendor == "postgresql":
            kind = driver.session_class()
            name = "_send" if hasattr(kind, "_send") else "send"
            send = getattr(kind, name)
            patch.setattr(kind, name, lambda session, sql: (asked.append(sql), send(session, sql))[1])
        action()
    asked += [query["sql"] for query in queries]
    return [sql for sql in asked if "jobs_job" in sql and sql.lstrip().startswith(("SELECT", "UPDATE", "WITH"))]
