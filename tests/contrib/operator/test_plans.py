"""The plans of what reads history: an index, and never a scan of the table."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from jobs.contrib.operations.selection import Selection
from jobs.contrib.operator import statistics, status
from jobs.contrib.operator.figures import Dashboard
from jobs.contrib.verify.verify import verify
from jobs.models import Job, Node
from tests.helpers.plans import FEW, ROWS, assert_indexed, make_history, plan

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.core]


def test_every_hot_query_uses_an_index(monkeypatch):
    make_history()
    monkeypatch.setattr("jobs.contrib.verify.verify.HISTORY", FEW // 2)
    now = timezone.now()
    assert_indexed("count", lambda: list(statistics.ended("default", now - statistics.MINUTE, now)))
    assert_indexed("dashboard", lambda: Dashboard().queues())
    assert_indexed("verify", lambda: verify(patient=False))
    if connection.vendor == "postgresql":
        assert_indexed("status", lambda: status.gather(live=False))
        found = status.gather(live=False)
        assert found["estimated"]
        assert found["jobs"]["succeeded"] == pytest.approx(ROWS, rel=0.05)
        assert found["jobs"]["failed"] == 20, "rare ones are counted"


def test_nothing_is_compiled_that_ends_early(admin_client):
    """Of a long backlog PostgreSQL expects work for a second, and compiled that long what takes 10 ms."""
    if connection.vendor != "postgresql":
        pytest.skip("only PostgreSQL compiles its plans")
    make_history()
    with connection.cursor() as cursor:
        # Without an end: ready jobs of thirty queues, which nobody has vacuumed.
        ended = "node_id = NULL, started_at = NULL, finished_at = NULL"
        cursor.execute(f"UPDATE jobs_job SET state = 'ready', queue = 'q' || right(id::text, 1), {ended}")
        cursor.execute("ANALYZE jobs_job")
        # A tenth of what it is by default, for a tenth of the jobs.
        cursor.execute("SET jit_above_cost = 10000")
    compiled: list[str] = []

    def explain(execute, sql, params, many, context):
        if sql.startswith("SELECT") and "JIT:" in plan(sql, params):
            compiled.append(sql)
        return execute(sql, params, many, context)

    hot = {
        "status": lambda: status.gather(live=True),
        "dashboard": Dashboard,
        "list": lambda: admin_client.get(reverse("admin:jobs_job_changelist")).render(),
        "verify": lambda: verify(patient=False),
    }
    try:
        for name, ask in hot.items():
            with connection.execute_wrapper(explain):
                ask()
            assert not compiled, f"{name}: {compiled}"
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET jit_above_cost")


def test_what_people_select_by_has_an_index(admin_client, monkeypatch):
    make_history()
    old, middle = (Job.objects.filter(state="succeeded").order_by("pk")[at] for at in (ROWS // 20, ROWS // 2))
    died = Node.objects.create(hostname="dead", pid=1, dead_at=old.finished_at)

    def newest(selection: Selection) -> object:
        return selection.rows("default").order_by("-pk")[:51]

    def page(client, **query: str) -> None:
        assert client.get(reverse("admin:jobs_job_changelist"), query).status_code == 200

    hot = {
        "failed": lambda: list(newest(Selection(["failed"], {"error": "ValueError"}))),
        "since": lambda: list(newest(Selection(values={"since": middle.created_at}))),
        "until": lambda: list(newest(Selection(values={"until": middle.created_at}))),
        "of a dead worker": lambda: list(newest(Selection(values={"node": str(died.pk)}))),
        "arguments": lambda: list(newest(Selection(values={"contains": "x"}))),
        "last hour": lambda: page(admin_client, created="1h"),
        "key": lambda: list(newest(Selection(values={"key": "nightly"}))),
        "no task": lambda: page(admin_client, task="none.of.them"),
        "no queue": lambda: page(admin_client, queue="none", state__exact="succeeded"),
    }
    monkeypatch.setattr("jobs.contrib.pages.base.LOOKED_AT", FEW // 2)
    if connection.vendor == "mysql":
        # For each row it asks both indexes, from the newest row on.
        del hot["key"]
    for name, query in hot.items():
        assert_indexed(name, query)


@pytest.mark.slow
def test_what_is_counted_before_a_confirmation_is_not_sorted(admin_client):
    make_history()
    key = str(Job.objects.filter(state="ready")[0].pk)
    with CaptureQueriesContext(connection) as queries:
        url = reverse("admin:jobs_job_changelist")
        assert admin_client.post(url, {"action": "cancel", "_selected_action": key}).status_code == 200
    counts = [query["sql"] for query in queries if query["sql"].startswith("SELECT COUNT(*) FROM (")]
    assert len(counts) == 3
    for sql in counts:
        assert "ORDER BY" not in sql
