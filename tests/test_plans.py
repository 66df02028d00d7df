"""The plan of every hot query at 100,000 rows of history: an index, and never a scan of the table."""

from __future__ import annotations

import datetime
import re
import uuid

import pytest
from celery import current_app
from django.db import connection
from django.db.models import QuerySet
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from jobs.contrib.batches import batch as batches
from jobs.contrib.batches.models import Batch
from jobs.contrib.canvas import chords
from jobs.inspection.dashboard import Dashboard
from jobs.lifecycle import transitions
from jobs.maintenance import tally
from jobs.maintenance.prune import delete_old, walk
from jobs.models import Job, Marker, Node
from jobs.operations.selection import Selection

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.core]

ROWS = 100_000

#: Rows that a query may pass over.
FEW = ROWS // 8


@pytest.fixture
def history():
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
        parts = "INSERT INTO jobs_chord_part (chord_id, task_id, place, result, error)"
        cursor.execute("INSERT INTO jobs_chord (id, made_at, size, done, failed) SELECT %s, %s, 1, 0, 0", ["one", now])
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


def hot_queries(node: Node, client: Client) -> dict[str, object]:
    old, middle = (Job.objects.filter(state="succeeded").order_by("pk")[place] for place in (ROWS // 20, ROWS // 2))
    died = Node.objects.create(hostname="dead", pid=1, dead_at=old.finished_at)
    batch = Batch.objects.create(name="open")
    Job.objects.filter(state="ready").update(batch=batch)
    both = {"ready, all of them": lambda: Selection(states=["ready"]).rows("default").count()}
    return {
        # SQLite takes no two partial indexes together.
        **(both if connection.vendor == "postgresql" else {}),
        "prune": lambda: list(walk("default", None, 500)),
        "prune, later": lambda: list(walk("default", (str(old.finished_at), old.pk), 500)),
        "delete": lambda: delete_old([old.pk], "default"),
        "part of a chord": lambda: chords.count(current_app, {}, "one", "nobody", "default", 1),
        "failed part of a chord": lambda: chords.count(current_app, {}, "one", "nobody", "default", error="no"),
        "count": lambda: list(tally.ended("default", timezone.now() - tally.MINUTE, timezone.now())),
        "expire": lambda: transitions.expire("default", 10),
        "dashboard": lambda: Dashboard().queues(),
        "list": lambda: list(newest(Selection())),
        "failed": lambda: list(newest(Selection(states=["failed"], error="ValueError"))),
        "failed, all of them": lambda: Selection(states=["failed"]).rows("default").count(),
        "since": lambda: list(newest(Selection(since=middle.created_at))),
        "until": lambda: list(newest(Selection(until=middle.created_at))),
        "of a dead worker": lambda: list(newest(Selection(node=str(died.pk)))),
        "arguments": lambda: list(newest(Selection(contains="x"))),
        "next page": lambda: page(client, p=f"after,{middle.pk}"),
        "page before": lambda: page(client, p=f"before,{middle.pk}"),
        "last page": lambda: page(client, p="last"),
        "last hour": lambda: page(client, created="1h"),
        "oldest": lambda: page(client, o="oldest"),
        "ended last": lambda: page(client, o="ended"),
        "ended before": lambda: page(client, o="ended", p=f"after,{middle.pk}"),
        "end of an id": lambda: page(client, q=str(middle.pk)[-8:]),
        "unknown task": lambda: transitions.postpone_unknown(Job.objects.filter(state="running")[0], 1000),
        "key": lambda: list(newest(Selection(key="nightly"))),
        "batch": lambda: list(newest(Selection(batch=batch.pk))),
        "batches that end": lambda: batches.close_ended("default"),
        "count of a batch": lambda: batches.counts(batch),
        "children": lambda: list(Job.objects.filter(parent_id=uuid.uuid4())),
        "page of a job": lambda: client.get(reverse("admin:jobs_job_change", args=[middle.pk])),
    }


def newest(selection: Selection) -> QuerySet[Job]:
    return selection.rows("default").order_by("-pk")[:51]


def page(client: Client, **query: str) -> None:
    assert client.get(reverse("admin:jobs_job_changelist"), query).status_code == 200


def test_every_hot_query_uses_an_index(history, admin_client, settings):
    settings.JOBS = {**settings.JOBS, "RETENTION": 3600.0}
    for name, query in hot_queries(history, admin_client).items():
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


@pytest.mark.slow
def test_what_is_counted_before_a_confirmation_is_not_sorted(history, admin_client):
    key = str(Job.objects.filter(state="ready")[0].pk)
    with CaptureQueriesContext(connection) as queries:
        url = reverse("admin:jobs_job_changelist")
        assert admin_client.post(url, {"action": "cancel", "_selected_action": key}).status_code == 200
    counts = [query["sql"] for query in queries if query["sql"].startswith("SELECT COUNT(*) FROM (")]
    assert len(counts) == 3
    for sql in counts:
        assert "ORDER BY" not in sql
