"""How many durable tasks wait for what, also where there are very many."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

import jobs
from jobs.contrib.durable import signals, store
from jobs.contrib.durable_operator import rows
from jobs.contrib.inspection import counts
from jobs.contrib.why.explain import explain
from jobs.models import Job
from jobs.testing import run_jobs
from tests.contrib.durable import bodies
from tests.helpers.plans import ROWS, analyze, asked_by, assert_indexed, make_history

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


def samples(client) -> dict[str, float]:
    page = client.get("/jobs/metrics").content.decode()
    lines = [line.rpartition(" ") for line in page.splitlines() if line.startswith("jobs_suspended")]
    return {name: float(value) for name, _, value in lines}


def test_those_that_wait_are_counted_by_kind_and_key(admin_client, settings):
    settings.JOBS = {**settings.JOBS, "RETRY": [3600]}
    bodies.FAIL["a"] = [ConnectionError()]
    for key in ("approved:1", "approved:2", "paid:1", "secret"):
        bodies.waits.delay(key)
    bodies.late.delay("k")
    bodies.steps.delay(["a"])
    bodies.gathers.delay([bodies.waits.s("approved:3")])
    run_jobs()
    Job.objects.filter(waits_for="signal:approved:2").update(started_at="2026-01-01T00:00:00Z")
    found = samples(admin_client)
    assert {name: value for name, value in found.items() if "oldest" not in name} == {
        'jobs_suspended{key="approved:*",kind="signal"}': 3.0,
        'jobs_suspended{key="paid:*",kind="signal"}': 1.0,
        # A whole key may be a person's.
        'jobs_suspended{key="*",kind="signal"}': 1.0,
        'jobs_suspended{key="",kind="sleep"}': 1.0,
        'jobs_suspended{key="",kind="retry"}': 1.0,
        'jobs_suspended{key="",kind="children"}': 1.0,
    }
    oldest = {name: value for name, value in found.items() if "oldest" in name}
    assert oldest['jobs_suspended_oldest_seconds{key="approved:*",kind="signal"}'] > 86400
    assert oldest['jobs_suspended_oldest_seconds{key="paid:*",kind="signal"}'] < 3600


def test_many_patterns_become_one(monkeypatch):
    monkeypatch.setattr(rows, "_PATTERNS", 2)
    for key in ("a:1", "a:2", "b:1", "b:2", "c:1", "d:1"):
        bodies.waits.delay(key)
    run_jobs()
    found = {key: number for (_, key), (number, _) in rows.suspended().items()}
    assert found == {"a:*": 2, "b:*": 2, "*": 2}


def test_a_scrape_looks_once(admin_client):
    with CaptureQueriesContext(connection) as queries:
        samples(admin_client)
    # Signals, sleeps, children and retries.
    assert len([query for query in queries if "waits_for" in query["sql"] and "ORDER BY" in query["sql"]]) == 4


def make_waiting() -> None:
    """100,000 jobs that wait for signals, and a few of each other kind; a signal of every tenth was taken."""
    make_history()
    bodies.waits.delay("approved:x")
    bodies.gathers.delay([bodies.waits.s("child")])
    bodies.late.delay("k")
    run_jobs()
    number = "SUBSTR(id, -8)" if connection.vendor == "sqlite" else "RIGHT(CAST(id AS CHAR(36)), 8)"
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE jobs_job SET state = 'scheduled', finished_at = NULL, result = NULL, "
            f"run_at = '9000-01-01 00:00:00', waits_for = {concat('signal:approved:', number)} "
            "WHERE state = 'succeeded' AND task = 'tests.tasks.noop'"
        )
    analyze("jobs_job", "jobs_step", "jobs_signal")


def concat(text: str, other: str) -> str:
    return f"CONCAT('{text}', {other})" if connection.vendor == "mysql" else f"'{text}' || {other}"


def test_where_very_many_wait_an_index_answers(admin_client):
    make_waiting()
    assert Job.objects.filter(waits_for__startswith="signal:approved:").count() > ROWS
    jobs.signal("paid:1")
    found = rows.suspended()
    assert found["signal", "approved:*"][0] == counts.MOST
    assert found["children", ""][0] == found["sleep", ""][0] == 1
    parent, child = Job.objects.get(task="tests.durable.gathers"), Job.objects.get(waits_for="signal:child")
    page = reverse("admin:jobs_job_change", args=[parent.pk])
    hot = {
        "metrics": rows.suspended,
        "waited for": lambda: list(store.awaiting_any(signals.SIGNAL, "default")[:20]),
        "not taken": lambda: list(signals.untaken("default")[:20]),
        "look again": lambda: signals.look_again("default"),
        "page": lambda: admin_client.get(page),
        "why": lambda: explain(child.pk),
        "why children": lambda: explain(parent.pk),
        "list": lambda: admin_client.get(reverse("admin:jobs_signal_changelist")),
    }
    if connection.vendor == "mysql":
        # It counts each row that is found, in the index and in the table.
        asked_by(hot.pop("metrics"), few=3 * counts.MOST)
    for name, query in hot.items():
        assert_indexed(name, query)
