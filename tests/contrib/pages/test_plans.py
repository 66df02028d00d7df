"""The plans of the pages at 100,000 rows of history: an index, and never a scan of the table."""

from __future__ import annotations

import pytest
from django.db import connection
from django.db.models import QuerySet
from django.test import Client
from django.urls import reverse

from jobs.contrib.operations.selection import Selection
from jobs.models import Job
from tests.helpers.plans import ROWS, assert_indexed, make_history

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.core]


def hot_queries(client: Client) -> dict[str, object]:
    middle = Job.objects.filter(state="succeeded").order_by("pk")[ROWS // 2]
    both = {"ready, all of them": lambda: Selection(states=["ready"]).rows("default").count()}
    return {
        # SQLite takes no two partial indexes together.
        **(both if connection.vendor == "postgresql" else {}),
        "list": lambda: list(newest(Selection())),
        "failed, all of them": lambda: Selection(states=["failed"]).rows("default").count(),
        "next page": lambda: page(client, p=f"after,{middle.pk}"),
        "page before": lambda: page(client, p=f"before,{middle.pk}"),
        "last page": lambda: page(client, p="last"),
        "oldest": lambda: page(client, o="oldest"),
        "ended last": lambda: page(client, o="ended"),
        "ended before": lambda: page(client, o="ended", p=f"after,{middle.pk}"),
        "end of an id": lambda: page(client, q=str(middle.pk)[-8:]),
        "page of a job": lambda: client.get(reverse("admin:jobs_job_change", args=[middle.pk])),
    }


def newest(selection: Selection) -> QuerySet[Job]:
    return selection.rows("default").order_by("-pk")[:51]


def page(client: Client, **query: str) -> None:
    assert client.get(reverse("admin:jobs_job_changelist"), query).status_code == 200


def test_every_hot_query_uses_an_index(admin_client, settings):
    settings.JOBS = {**settings.JOBS, "RETENTION": 3600.0}
    make_history()
    for name, query in hot_queries(admin_client).items():
        assert_indexed(name, query)
