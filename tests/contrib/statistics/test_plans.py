"""The plans of what reads history: an index, and never a scan of the table."""

from __future__ import annotations

import pytest
from django.utils import timezone

from jobs.contrib.statistics import counting
from jobs.contrib.statistics.dashboard import Dashboard
from tests.helpers.plans import assert_indexed, make_history

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.core]


def test_every_hot_query_uses_an_index():
    make_history()
    now = timezone.now()
    assert_indexed("count", lambda: list(counting.ended("default", now - counting.MINUTE, now)))
    assert_indexed("dashboard", lambda: Dashboard().queues())
