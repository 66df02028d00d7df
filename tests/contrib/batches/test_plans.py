"""The plans of what asks for batches: an index, and never a scan of the table."""

from __future__ import annotations

import pytest

from jobs.contrib.batches import batch as batches
from jobs.contrib.batches.models import Batch
from jobs.contrib.operations.selection import Selection
from jobs.models import Job
from tests.helpers.plans import assert_indexed, make_history

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.core]


def test_every_hot_query_uses_an_index():
    make_history()
    batch = Batch.objects.create(name="open")
    Job.objects.filter(state="ready").update(batch=batch)
    of_it = Selection(values={"batch": batch.pk}).rows("default").order_by("-pk")[:51]
    assert_indexed("batch", lambda: list(of_it.all()))
    assert_indexed("batches that end", lambda: batches.close_ended("default"))
    assert_indexed("count of a batch", lambda: batches.counts(batch))
