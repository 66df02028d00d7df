"""What the system checks say of the broker of events."""

from __future__ import annotations

from jobs.contrib.checks import system as checks
from tests.helpers.checked import app, ids


def test_a_service_that_others_hear_has_a_name(settings):
    settings.JOBS = {"EVENT_BROKER": "amqp://rabbit"}
    assert "jobs.E020" in ids(checks.check_celery(app()))
    settings.JOBS = {"EVENT_BROKER": "amqp://rabbit", "SERVICE": "billing"}
    assert ids(checks.check_celery(app())) == []


def test_the_name_of_a_service_fits_a_routing_key(settings):
    for name in ("b" * 51, "bücher", "a..b"):
        settings.JOBS = {"EVENT_BROKER": "amqp://rabbit", "SERVICE": name}
        assert "up to 50 letters" in checks.check_settings()[0].msg
