"""What people see of the broker of events."""

from __future__ import annotations

import html
import json

import pytest
from django.urls import reverse
from django.utils import timezone

from jobs.models import Action
from tests.contrib.events.rows import row


@pytest.mark.django_db(transaction=True)
def test_a_replay_says_that_the_broker_is_away(admin_client, settings):
    settings.JOBS = {**settings.JOBS, "EVENT_BROKER": "amqp://guest:guest@127.0.0.1:1//"}
    event = row(relayed_at=timezone.now())
    form = {"keys": json.dumps([str(event.uuid)]), "to": "billing"}
    found = admin_client.post(reverse("admin:jobs_events_event_replay"), form, follow=True)
    assert "refused" in html.unescape(found.content.decode()).partition("messagelist")[2][:300]
    assert not Action.objects.exists()
