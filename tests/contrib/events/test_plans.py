"""The plan of what events ask again and again, at 100,000 rows of history."""

from __future__ import annotations

import datetime
import re

import pytest
from celery import current_app
from django.db import connection
from django.utils import timezone

from jobs.contrib.event_operator import replay
from jobs.contrib.pruning.prune import Prune
from jobs.events import order, relay, store
from jobs.events.models import Event
from jobs.lifecycle.transitions import NEVER
from jobs.maintenance import clock
from jobs.models import Job, Node
from jobs.models.fields import uuid7
from tests.contrib.events import tasks as told
from tests.helpers.event_plans import SOME, multiply, rows_read
from tests.helpers.plans import FEW, asked_by, plan

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.core]

DAY = datetime.timedelta(days=1)


@pytest.mark.slow
def test_a_long_line_costs_those_that_stand_at_its_end_nothing():
    """Who hands events on holds a lock while it asks of which keys a job is there."""
    jobs = {"task": "tests.contrib.events.tasks.note_moved", "queue": "celery"}
    Job.objects.create(**jobs, order_key="k", order_position=1, state="scheduled", run_at=NEVER)
    multiply(Job, "id", order_key="order_key")
    Job.objects.create(**jobs, order_key="over", state="succeeded", run_at=NEVER, finished_at=timezone.now())
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")
    keys = ["k", "over", *(f"none{n}" for n in range(50))]
    assert store.busy("default", keys) == {"k"}
    assert rows_read(lambda: store.busy("default", keys)) < SOME
    assert order.release_stuck("default") == 1
    assert rows_read(lambda: order.release_stuck("default")) < SOME


@pytest.fixture
def history(monkeypatch):
    """100,000 events that were handed on, as many jobs of order keys that ended, and 2,000 that wait behind others."""
    now = timezone.now()
    node = Node.objects.create(hostname="h", pid=1)
    before = dict.fromkeys(("at", "relayed_at", "sent_at"), now - DAY)
    Event.objects.create(name="test.thing.moved", source="shop", data={"name": "a"}, number=0, **before)
    jobs = {"task": "tests.contrib.events.tasks.note_moved", "queue": "celery"}
    Job.objects.create(**jobs, order_key="k", state="succeeded", run_at=now - DAY, finished_at=now)
    multiply(Event, "uuid")
    multiply(Job, "id")
    heads = [
        Job(**jobs, order_key=f"k{n}", state="running", node=node, token=1, started_at=now, lease=1) for n in range(200)
    ]
    behind = [
        Job(**jobs, order_key=f"k{n % 200}", order_position=n + 1, state="scheduled", run_at=NEVER) for n in range(2000)
    ]
    Job.objects.bulk_create([*heads, *behind], batch_size=5000)
    for number in range(20):
        told.thing_moved("a", number)
    relay.subscribe(current_app._get_current_object(), "default")
    # SQLite has none where nobody asks for it, and plans without.
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")


@pytest.mark.slow
def test_every_hot_query_of_events_uses_an_index(history):
    app = current_app._get_current_object()
    hot = {
        "tick": clock.tick,
        "hand on": lambda: relay.hand_on(app, "default"),
        "let in": lambda: order.release("default", ["k1"]),
        "let in many": lambda: order.release("default", [f"k{n}" for n in range(50)]),
        "stuck": lambda: order.release_stuck("default"),
        "out": lambda: store.busy("default", ["k1", "k4999"]),
        "prune": lambda: Prune().run_once(),
        "list": lambda: list(replay.select("default", ["test.thing.made"])[:50]),
        "handlings": lambda: list(Job.objects.filter(parent_id=uuid7())),
    }
    for name, query in hot.items():
        statements = asked_by(query)
        if name == "let in" and connection.vendor == "postgresql":
            # Past Django.
            statements.append((store.RELEASE.format(key="'k1'", now="statement_timestamp()"), None))
        for sql, params in statements:
            if not sql.lstrip().startswith(("SELECT", "UPDATE", "DELETE", "WITH")):
                continue
            text = plan(sql, params)
            assert not re.search(r"Seq Scan on jobs_(job|event)\b", text), f"{name}: {sql}\n{text}"
            read = sum(map(int, re.findall(r"Rows Removed by Filter: (\d+)", text)))
            assert read < FEW, f"{name}: {sql}\n{text}"
            scans = [line for line in text.splitlines() if re.search(r"SCAN jobs_(job|event)\b", line)]
            # All events of a name after the first one.
            assert "jobs_event_number (source=? AND name=? AND number>?" not in text, f"{name}: {sql}\n{text}"
            # The first ones by their key are read from the table itself.
            is_first = sql.endswith("LIMIT 5000")
            # Another index would be read from its one end to the other.
            assert is_first or all(re.search("jobs_event_un(relayed|sent)|jobs_job_running", line) for line in scans), (
                f"{name}: {sql}\n{text}"
            )
