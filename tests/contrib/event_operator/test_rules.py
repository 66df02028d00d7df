"""What must be true of events: one that nobody hands on is seen."""

from __future__ import annotations

import pytest

from jobs.events.models import Event
from tests.helpers.verifying import LONG, ago, assert_seen, rules_of

pytestmark = pytest.mark.django_db(transaction=True)


def waits_to_be_handed_on() -> object:
    return Event.objects.create(name="order.placed", source="shop", at=ago(LONG)).pk


def test_an_event_that_nobody_hands_on_is_seen(watching):
    assert rules_of("jobs.contrib.event_operator") == {"event-handed-on"}
    assert_seen("event-handed-on", waits_to_be_handed_on)
