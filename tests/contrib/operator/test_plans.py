"""The plans of what reads history: an index, and never a scan of the table."""

from __future__ import annotations

import pytest
from django.utils import timezone

from jobs.contrib.operator import statistics
from jobs.contrib.operator.figures import Dashboard
from tests.helpers.plans import assert_indexed, make_history

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.core]


def test_every_hot_query_uses_an_index():
    make_history()
    now = timezone.now()
    assert_indexed("count", lambda: list(statistics.ended("default", now - statistics.MINUTE, now)))
    assert_indexed("dashboard", lambda: Dashboard().queues())
