"""What people may not see of arguments they see of no event."""

from __future__ import annotations

import pytest

from jobs.events.models import Event
from tests import tasks
from tests.helpers.redactions import SECRET, commands, redact, text_of

pytestmark = pytest.mark.django_db


def test_an_event_is_listed_without_the_data_that_its_columns_are_made_of(settings, admin_client):
    values = {"name": "shop.paid", "source": "shop", "order_key": SECRET, "problem": f"the data {SECRET} does not fit"}
    event = Event.objects.create(**values, data={"note": SECRET, "id": 1})
    redact(settings)
    pages = text_of(admin_client, ("event_changelist", []), ("event_change", [event.pk]))
    calls = [["events", "list"], ["events", "show", str(event.uuid)]]
    text = pages + commands(*calls, *([*call, "--json"] for call in calls))
    assert SECRET not in text
    assert "the data *** does not fit" in text


def test_nor_without_the_values_that_came_with_it_without_a_name(settings, admin_client):
    """As services of Celery's message format send them: the task's parameters name them."""
    values = {"name": tasks.effect.name, "source": "shop", "order_key": SECRET, "problem": f"{SECRET} does not fit"}
    event = Event.objects.create(**values, data={}, headers={"args": ["key", SECRET]})
    redact(settings)
    pages = text_of(admin_client, ("event_changelist", []), ("event_change", [event.pk]))
    calls = [["events", "list"], ["events", "show", str(event.uuid)]]
    text = pages + commands(*calls, *([*call, "--json"] for call in calls))
    assert SECRET not in text
    assert "*** does not fit" in text
