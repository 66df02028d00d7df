"""The plan of every hot query at 100,000 rows of history: an index, and never a scan of the table."""

from __future__ import annotations

import uuid

import pytest

from jobs.lifecycle import transitions
from jobs.models import Job
from tests.helpers.plans import assert_indexed, make_history

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.core]


@pytest.fixture
def history():
    return make_history()


def test_every_hot_query_uses_an_index(history):
    hot = {
        "expire": lambda: transitions.expire("default", 10),
        "children": lambda: list(Job.objects.filter(parent_id=uuid.uuid4())),
    }
    for name, query in hot.items():
        assert_indexed(name, query)
