"""The plan of what a publisher asks again and again, while 100,000 events wait or are history."""

from __future__ import annotations

import time

import pytest
from django.db import connection
from django.utils import timezone

from jobs.contrib.event_broker import publisher
from jobs.contrib.event_broker.models import Position
from jobs.events.models import Event
from tests.helpers.event_plans import SOME, multiply, rows_read
from tests.helpers.plans import ROWS

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.core]


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
def test_events_that_were_published_are_not_read_to_say_how_far_a_name_is():
    before = dict.fromkeys(("relayed_at", "sent_at"), timezone.now())
    Event.objects.create(name="test.thing.moved", source="shop", data={"name": "a"}, number=0, **before)
    Position.objects.create(source="shop", name="test.thing.moved", number=ROWS)
    multiply(Event, "uuid")
    assert publisher.positions("default") == [("shop", "test.thing.moved", ROWS)]
    assert rows_read(lambda: publisher.positions("default")) < SOME
