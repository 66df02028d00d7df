"""What machines ask for: is it healthy, and how much is there."""

from __future__ import annotations

import socket
import sys
from urllib.parse import quote

import pytest
from django.contrib.auth.models import User
from django.core.signing import Signer
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from jobs.contrib.inspection import counts
from jobs.contrib.operator import status
from jobs.contrib.pauses import pauses
from jobs.models import Instance
from jobs.store import databases
from tests.helpers.rows import let_heartbeat, make, make_node

pytestmark = pytest.mark.django_db(transaction=True)

HEALTH, METRICS = "/jobs/health", "/jobs/metrics"


@pytest.fixture
def worker():
    node = make_node(concurrency=4)
    let_heartbeat(node)
    return node


def test_healthy_with_a_worker_and_without_a_lag(client, worker):
    # However long they wait for a worker that is free.
    make("ready", age=3600)
    make("scheduled", age=-3600)
    make("scheduled", age=1)
    response = client.get(HEALTH)
    assert (response.status_code, response.json()) == (200, {"status": "ok", "reasons": []})
    assert "no-store" in response["Cache-Control"]
    assert client.post(HEALTH).status_code == 405


def test_failing_without(client):
    assert client.get(HEALTH).json()["reasons"] == ["no_worker"]
    make("scheduled", age=3600)
    Instance.objects.update_or_create(pk=1, defaults={"mark": "another"})
    response = client.get(HEALTH)
    assert (response.status_code, response.json()["reasons"]) == (503, ["no_worker", "overdue", "not_adopted"])


def test_a_queue_without_a_worker_is_degraded_for_people_and_well_for_load_balancers(client, worker):
    make("ready", queue="slow", age=200)
    make("ready", queue="paused", age=4000)
    pauses.pause("paused")
    assert client.get(HEALTH).json()["status"] == "ok", "a deploy takes as long"
    make("ready", queue="slow", age=35 * 60)
    for query, code in ("", 200), ("?strict", 503):
        response = client.get(HEALTH + query)
        assert (response.status_code, response.json()) == (
            code, {"status": "degraded", "reasons": ["queue_without_worker"]}
        )  # fmt: skip


def test_health_opens_no_connection_and_counts_nothing(client, worker, monkeypatch):
    client.get(HEALTH)
    opened = []
    with monkeypatch.context() as patch, CaptureQueriesContext(connection) as queries:
        patch.setattr(databases, "_new_connection", lambda alias: opened.append(alias) or 1 / 0)
        patch.setattr(socket.socket, "connect", lambda *args: opened.append(args) or 1 / 0)
        assert client.get(HEALTH).json()["reasons"] == []
    assert opened == []
    assert [
        query["sql"] for query in queries if "count(" in query["sql"].lower() and "LIMIT 1)" not in query["sql"]
    ] == []


def test_a_database_that_is_away_is_said_with_atomic_requests_too(client, monkeypatch):
    """Django would begin a transaction before the view: the answer was an error, and no reason."""

    def away():
        raise OperationalError("connection refused")

    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    connection.close()
    with monkeypatch.context() as patch:
        patch.setattr(connection, "connect", away)
        answer = client.get(HEALTH)
    assert (answer.status_code, answer.json()) == (503, {"status": "failing", "reasons": ["database"]})


def test_metrics_are_for_those_who_may_look(client, settings, admin_client):
    assert client.get(METRICS).status_code == 403
    assert client.get(METRICS, headers={"Authorization": "Bearer None"}).status_code == 403
    assert admin_client.get(METRICS).status_code == 200
    settings.JOBS = {**settings.JOBS, "METRICS_TOKEN": "secret"}
    assert client.get(METRICS, headers={"Authorization": "Bearer guess"}).status_code == 403
    assert client.get(METRICS, headers={"Authorization": "Bearer secret"}).status_code == 200
    client.force_login(User.objects.create_user("staff", is_staff=True))
    assert client.get(METRICS).status_code == 403


def test_metrics(admin_client, worker):
    make("ready", age=60)
    make("scheduled", queue='ma"il', age=30)
    make("running", node=worker)
    lines = admin_client.get(METRICS).content.decode().splitlines()
    node = f'hostname="web1",node="{worker.pk}"'
    for line in (
        'celery_queue_length{queue_name="celery"} 1.0',
        'celery_active_consumer_count{queue_name="celery"} 1.0',
        'jobs_live{queue_name="ma\\"il",state="scheduled"} 1.0',
        f"celery_worker_up{{{node}}} 1.0",
        f"celery_worker_tasks_active{{{node}}} 1.0",
        f"jobs_worker_processes{{{node}}} 4.0",
        "jobs_due 1.0",
    ):
        assert line in lines, (line, lines)


def test_metrics_without_their_library_say_what_to_install(admin_client, monkeypatch):
    monkeypatch.delitem(sys.modules, "jobs.contrib.operator.metrics", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    response = admin_client.get(METRICS)
    assert (response.status_code, b"[metrics]" in response.content) == (501, True)


def test_a_queue_without_a_job_is_still_there(admin_client, worker):
    text = admin_client.get(METRICS).content.decode()
    assert 'celery_queue_length{queue_name="mail"} 0.0' in text
    assert 'celery_active_consumer_count{queue_name="mail"} 1.0' in text


def test_a_long_backlog_is_counted_up_to_a_bound(admin_client, worker, monkeypatch):
    monkeypatch.setattr(counts, "MOST", 3)
    for number in range(5):
        make("ready", queue="mail", rank=number % 2)
        make("scheduled", queue="slow")
    found = status.gather(live=True)
    assert {name: queue["capped"] for name, queue in found["queues"].items()} == {
        "celery": False,
        "mail": True,
        "slow": True,
    }
    assert (found["capped"], found["queues"]["slow"]["scheduled"]) == (True, 3)
    assert 3 <= found["queues"]["mail"]["ready"] <= 5
    assert "celery_queue_length" in admin_client.get(METRICS).content.decode()


@pytest.mark.parametrize("said", ["no-uuid", "", "0" * 31, "\u00e9", "[" * 2000])
def test_a_signature_of_something_else_is_the_progress_of_nothing(client, said):
    """Another part of the site may sign with the same salt."""
    token = Signer(salt="jobs.progress").sign(said)
    assert client.get(f"/jobs/progress/{quote(token)}").status_code == 404
