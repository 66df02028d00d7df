"""What the system checks say of the broker of events."""

from __future__ import annotations

from jobs import checks
from tests.helpers.checked import app, ids


def test_a_service_that_others_hear_has_a_name(settings):
    settings.JOBS = {"EVENT_BROKER": "amqp://rabbit"}
    assert "jobs.E020" in ids(checks.check_celery(app()))
    settings.JOBS = {"EVENT_BROKER": "amqp://rabbit", "SERVICE": "billing"}
    assert ids(checks.check_celery(app())) == []
