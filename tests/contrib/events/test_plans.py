"""The plan of what events ask again and again, at 100,000 rows of history."""

from __future__ import annotations

import datetime
import json
import re
import time
from collections.abc import Callable, Iterator

import pytest
from celery import current_app
from django.db import connection
from django.db.models import Model
from django.utils import timezone

from jobs.events import order, publisher, relay, replay
from jobs.events.models import Event, Position
from jobs.lifecycle.transitions import NEVER
from jobs.maintenance import clock
from jobs.maintenance.prune import Prune
from jobs.models import Job, Node
from jobs.models.fields import uuid7
from jobs.store import databases
from tests.contrib.events import tasks as told
from tests.helpers.plans import FEW, ROWS, asked_by, plan

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.core]

DAY = datetime.timedelta(days=1)


def multiply(model: type[Model], key: str, **more: str) -> None:
    """Make 100,000 rows of the one that there is, each with a key of its own, and 5,000 order keys."""
    new_key = "gen_random_uuid()" if connection.vendor == "postgresql" else "lower(hex(randomblob(16)))"
    names = [field.column for field in model._meta.concrete_fields if field.column not in (key, "id")]
    each = {"order_key": "order_key || (i %% 5000)", "number": "number + i", **more}
    values = [each.get(name, name) for name in names]
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS}) "
            f"INSERT INTO {model._meta.db_table} ({key}, {', '.join(names)}) "
            f"SELECT {new_key}, {', '.join(values)} FROM {model._meta.db_table}, n",
            [],
        )


def nodes(plan: dict) -> Iterator[dict]:
    yield plan
    for each in plan.get("Plans", ()):
        yield from nodes(each)


def rows_read(query: Callable[[], object]) -> int:
    """How many rows, about, a query's statements read. SQLite counts the steps of its machine: ten a row, about."""
    if connection.vendor == "sqlite":
        connection.ensure_connection()
        steps: list[int] = []
        connection.connection.set_progress_handler(lambda: steps.append(100), 100)
        query()
        connection.connection.set_progress_handler(None, 100)
        return sum(steps) // 10
    found = 0
    for sql, params in asked_by(query):
        if sql.lstrip().startswith(("SELECT", "WITH")):
            with connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", params)
                [(text,)] = cursor.fetchall()
            for node in nodes((json.loads(text) if isinstance(text, str) else text)[0]["Plan"]):
                if "Scan" in node["Node Type"]:
                    read = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
                    found += read * node["Actual Loops"]
    return found


#: What a query may read that does not grow with what waits.
SOME = 3000


@pytest.mark.slow
@pytest.mark.parametrize("is_analyzed", [True, False])
def test_a_full_queue_costs_the_other_names_nothing(is_analyzed):
    """100,000 events of one name wait for it: they are not read each time that somebody looks for others."""
    names = ["test.thing.made", "test.thing.moved", "test.thing.lost"]
    now = timezone.now()
    Position.objects.bulk_create(Position(source="shop", name=name, number=10) for name in names)
    about = {"source": "shop", "data": {"name": "a"}, "number": 0, "relayed_at": now}
    Event.objects.create(name="test.thing.moved", **about)
    multiply(Event, "uuid")
    made = [Event(**{**about, "name": "test.thing.made", "number": n + 1}) for n in range(20)]
    Event.objects.bulk_create([*made, Event(**{**about, "name": "test.thing.lost", "number": 10, "sent_at": now})])
    if is_analyzed and connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")
    sends = publisher.Publisher()
    sends._full_until["default", "test.thing.moved"] = time.monotonic() + 3600
    assert [event.number for event in sends._next("default")] == list(range(1, 21))
    assert rows_read(lambda: sends._next("default")) < SOME
    assert publisher.positions("default") == [("shop", "test.thing.lost", 10)]
    assert rows_read(lambda: publisher.positions("default")) < SOME


@pytest.mark.slow
def test_a_long_line_costs_those_that_stand_at_its_end_nothing():
    """Who hands events on holds a lock while it asks of which keys a job is there."""
    jobs = {"task": "tests.contrib.events.tasks.note_moved", "queue": "celery"}
    Job.objects.create(**jobs, order_key="k", order_place=1, state="scheduled", run_at=NEVER)
    multiply(Job, "id", order_key="order_key")
    Job.objects.create(**jobs, order_key="over", state="succeeded", run_at=NEVER, finished_at=timezone.now())
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")
    keys = ["k", "over", *(f"none{n}" for n in range(50))]
    assert order.out("default", keys) == {"k"}
    assert rows_read(lambda: order.out("default", keys)) < SOME
    assert order.let_in_stuck("default") == 1
    assert rows_read(lambda: order.let_in_stuck("default")) < SOME


@pytest.fixture
def history(monkeypatch):
    """100,000 events that were handed on, as many jobs of order keys that ended, and 2,000 that wait behind others."""
    now = timezone.now()
    node = Node.objects.create(hostname="h", pid=1)
    before = dict.fromkeys(("at", "relayed_at", "sent_at"), now - DAY)
    Event.objects.create(name="test.thing.moved", source="shop", data={"name": "a"}, number=0, **before)
    Position.objects.create(source="shop", name="test.thing.moved", number=ROWS)
    jobs = {"task": "tests.contrib.events.tasks.note_moved", "queue": "celery"}
    Job.objects.create(**jobs, order_key="k", state="succeeded", run_at=now - DAY, finished_at=now)
    multiply(Event, "uuid")
    multiply(Job, "id")
    heads = [
        Job(**jobs, order_key=f"k{n}", state="running", node=node, token=1, started_at=now, lease=1) for n in range(200)
    ]
    behind = [
        Job(**jobs, order_key=f"k{n % 200}", order_place=n + 1, state="scheduled", run_at=NEVER) for n in range(2000)
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
        "let in": lambda: order.let_in("default", ["k1"]),
        "let in many": lambda: order.let_in("default", [f"k{n}" for n in range(50)]),
        "stuck": lambda: order.let_in_stuck("default"),
        "out": lambda: order.out("default", ["k1", "k4999"]),
        "positions": lambda: list(publisher.positions("default")),
        "prune": lambda: Prune(databases.SideDatabase()).run_once(),
        "list": lambda: list(replay.select("default", ["test.thing.made"])[:50]),
        "handlings": lambda: list(Job.objects.filter(parent_id=uuid7())),
    }
    for name, query in hot.items():
        statements = asked_by(query)
        if name == "let in" and connection.vendor == "postgresql":
            # Past Django.
            statements.append((order._LET_IN.format(key="'k1'", now="now()"), None))
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
