"""The plan of every hot query at 100,000 rows of history: an index, and never a scan of the table."""

from __future__ import annotations

import uuid

import pytest
from django.db import connection
from django.db.models import QuerySet
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from jobs.lifecycle import transitions
from jobs.maintenance.prune import delete_old, walk
from jobs.models import Job, Node
from jobs.operations.selection import Selection
from tests.helpers.plans import ROWS, assert_indexed, make_history

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.core]


@pytest.fixture
def history():
    return make_history()


def hot_queries(node: Node, client: Client) -> dict[str, object]:
    old, middle = (Job.objects.filter(state="succeeded").order_by("pk")[place] for place in (ROWS // 20, ROWS // 2))
    both = {"ready, all of them": lambda: Selection(states=["ready"]).rows("default").count()}
    return {
        # SQLite takes no two partial indexes together.
        **(both if connection.vendor == "postgresql" else {}),
        "prune": lambda: list(walk("default", None, 500)),
        "prune, later": lambda: list(walk("default", (str(old.finished_at), old.pk), 500)),
        "delete": lambda: delete_old([old.pk], "default"),
        "expire": lambda: transitions.expire("default", 10),
        "list": lambda: list(newest(Selection())),
        "failed, all of them": lambda: Selection(states=["failed"]).rows("default").count(),
        "next page": lambda: page(client, p=f"after,{middle.pk}"),
        "page before": lambda: page(client, p=f"before,{middle.pk}"),
        "last page": lambda: page(client, p="last"),
        "oldest": lambda: page(client, o="oldest"),
        "ended last": lambda: page(client, o="ended"),
        "ended before": lambda: page(client, o="ended", p=f"after,{middle.pk}"),
        "end of an id": lambda: page(client, q=str(middle.pk)[-8:]),
        "unknown task": lambda: transitions.postpone_unknown(Job.objects.filter(state="running")[0], 1000),
        "children": lambda: list(Job.objects.filter(parent_id=uuid.uuid4())),
        "page of a job": lambda: client.get(reverse("admin:jobs_job_change", args=[middle.pk])),
    }


def newest(selection: Selection) -> QuerySet[Job]:
    return selection.rows("default").order_by("-pk")[:51]


def page(client: Client, **query: str) -> None:
    assert client.get(reverse("admin:jobs_job_changelist"), query).status_code == 200


def test_every_hot_query_uses_an_index(history, admin_client, settings):
    settings.JOBS = {**settings.JOBS, "RETENTION": 3600.0}
    hot = hot_queries(history, admin_client)
    for name, query in hot.items():
        assert_indexed(name, query)


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
