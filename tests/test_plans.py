"""The plan of every hot query at 100,000 rows of history: an index, and never a scan of the table."""

from __future__ import annotations

import datetime
import os
import re
import uuid

import pytest
from django.db import connection
from django.db.models import QuerySet
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from jobs import lifecycle
from jobs.board import board
from jobs.dashboard import Dashboard
from jobs.history import delete_ended
from jobs.maintenance import rescue, tally
from jobs.maintenance.relay import Relay, Suspects
from jobs.models import Job, Node
from jobs.selection import Selection

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.core]

ROWS = 100_000


@pytest.fixture
def history():
    """100,000 finished jobs and a few of each live state, with fresh statistics."""
    now = timezone.now()
    template = {
        "task": "tests.tasks.noop",
        "queue": "celery",
        "options": {},
        "headers": {},
        "result": None,
    }
    node = Node.objects.create(hostname="h", pid=1)
    before = now - datetime.timedelta(days=2)
    Job.objects.create(**template, state="succeeded", created_at=before, run_at=before, finished_at=before)
    columns = [field.column for field in Job._meta.concrete_fields if field.column != "id"]
    new_id = "gen_random_uuid()" if connection.vendor == "postgresql" else "lower(hex(randomblob(16)))"
    names = ", ".join(columns)
    earlier = "{0} - i * interval '1 second'"
    if connection.vendor == "sqlite":
        earlier = "strftime('%%Y-%%m-%%d %%H:%%M:%%f', {0}, '-' || i || ' seconds')"
    moments = ("created_at", "run_at", "finished_at")
    values = ", ".join(earlier.format(name) if name in moments else name for name in columns)
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS}) "
            f"INSERT INTO jobs_job (id, {names}) SELECT {new_id}, {values} FROM jobs_job, n",
            [],
        )
    live = [Job(**template, state="ready", dispatched_at=now if n % 2 else None) for n in range(20)]
    live += [Job(**template, state="scheduled", expires_at=now if n % 2 else None) for n in range(20)]
    live += [Job(**template, state="running", node=node, token=uuid.uuid4(), started_at=now) for _ in range(20)]
    Job.objects.bulk_create(live)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    return node


def plan(sql: str) -> str:
    with connection.cursor() as cursor:
        prefix = "EXPLAIN QUERY PLAN " if connection.vendor == "sqlite" else "EXPLAIN "
        cursor.execute(prefix + sql)
        return "\n".join(" ".join(str(value) for value in row) for row in cursor.fetchall())


def hot_queries(node: Node, client: Client) -> dict[str, object]:
    middle = Job.objects.filter(state="succeeded").order_by("pk")[ROWS // 2]
    suspects = Suspects(Relay().app, "default")
    return {
        "claim": lambda: lifecycle.claim(uuid.uuid4(), node.pk, "default"),
        "due": lambda: lifecycle.due("default", 100),
        "expire": lambda: lifecycle.expire("default", 100),
        "suspects": lambda: list(suspects._old(["elsewhere"])[:100]),
        "watch": suspects._watch_running,
        "orphans": lambda: rescue.OwnJobs(board, os.getpid()).hand_back_orphans(),
        "dead nodes": lambda: rescue.give_back_all("default"),
        "prune": lambda: delete_ended("default", ["succeeded"], 3600, 100),
        "count": lambda: list(tally.ended("default", timezone.now() - tally.MINUTE, timezone.now())),
        "dashboard": lambda: Dashboard().queues(),
        "list": lambda: list(newest(Selection())),
        "failed": lambda: list(newest(Selection(states=["failed"], error="ValueError"))),
        "next page": lambda: page(client, f"after,{middle.created_at.isoformat()},{middle.pk}"),
        "page before": lambda: page(client, f"before,{middle.created_at.isoformat()},{middle.pk}"),
        "last page": lambda: page(client, "last"),
        "oldest": lambda: list(Job.objects.order_by("created_at", "pk")[:51]),
        "ended last": lambda: list(Job.objects.filter(finished_at__isnull=False).order_by("-finished_at", "-pk")[:51]),
        "key": lambda: list(newest(Selection(key="nightly"))),
        "children": lambda: list(Job.objects.filter(parent_id=uuid.uuid4())),
    }


def newest(selection: Selection) -> QuerySet[Job]:
    return selection.rows("default").order_by("-created_at", "-pk")[:51]


def page(client: Client, place: str) -> None:
    assert client.get(reverse("admin:jobs_job_changelist"), {"p": place}).status_code == 200


def test_every_hot_query_uses_an_index(history, admin_client):
    for name, query in hot_queries(history, admin_client).items():
        with CaptureQueriesContext(connection) as queries:
            query()  # type: ignore[operator]
        # What is read piece by piece comes as the declaration of a cursor.
        asked = [re.sub(r"^DECLARE .*? FOR ", "", q["sql"], flags=re.DOTALL) for q in queries]
        statements = [sql for sql in asked if sql.startswith(("SELECT", "UPDATE", "DELETE"))]
        assert statements, name
        for sql in statements:
            text = plan(sql)
            assert "Seq Scan on jobs_job" not in text, f"{name}: {sql}\n{text}"
            scans = [line for line in text.splitlines() if "SCAN jobs_job" in line and "USING" not in line]
            assert not scans, f"{name}: {sql}\n{text}"


def test_what_is_counted_before_a_confirmation_is_not_sorted(history, admin_client):
    key = str(Job.objects.filter(state="ready")[0].pk)
    with CaptureQueriesContext(connection) as queries:
        url = reverse("admin:jobs_job_changelist")
        assert admin_client.post(url, {"action": "cancel", "_selected_action": key}).status_code == 200
    counts = [query["sql"] for query in queries if query["sql"].startswith("SELECT COUNT(*) FROM (")]
    assert len(counts) == 3
    for sql in counts:
        assert "ORDER BY" not in sql
