"""The plans of what asks for chords: an index, and never a scan of the table."""

from __future__ import annotations

import pytest
from celery import current_app

from jobs.contrib.canvas import chords
from tests.helpers.plans import assert_indexed, make_history

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.core]


def test_every_hot_query_uses_an_index():
    make_history()
    assert_indexed("part", lambda: chords.count(current_app, {}, "one", "nobody", "default", 1))
    assert_indexed("failed part", lambda: chords.count(current_app, {}, "one", "nobody", "default", error="no"))
