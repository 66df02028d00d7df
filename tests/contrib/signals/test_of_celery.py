"""Celery's own signals of a call: at the call, and after the commit."""

from __future__ import annotations

import pytest
from celery import signals
from django.db import connection, transaction

from jobs.models import Job
from tests.helpers.concurrency import autocommit_off
from tests.helpers.parity import seen_by_ours

pytestmark = pytest.mark.django_db(transaction=True)


def test_headers_of_signal_receivers_are_taken_at_the_call(ours, node):
    def inject(headers, **kwargs):
        headers["trace"] = "from the request"

    signals.before_task_publish.connect(inject)
    try:
        ours.tasks["parity.add"].apply_async((1,))
    finally:
        signals.before_task_publish.disconnect(inject)
    assert Job.objects.get().headers == {"trace": "from the request"}
    [sees] = seen_by_ours(ours, lambda app: None)
    assert sees["trace"] == sees["headers"]["trace"] == "from the request"


def test_after_task_publish_is_sent_once_after_the_commit(ours):
    told = []

    def note(sender, headers, body, routing_key, **kwargs):
        told.append((sender, headers["id"], body[0], routing_key))

    signals.after_task_publish.connect(note)
    try:
        with transaction.atomic():
            result = ours.tasks["parity.add"].apply_async((1,), queue="mail")
            assert told == []
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            ours.tasks["parity.add"].apply_async((2,))
            raise ZeroDivisionError
        with autocommit_off():
            # Nothing tells of this commit.
            ours.tasks["parity.add"].apply_async((3,))
            connection.commit()
    finally:
        signals.after_task_publish.disconnect(note)
    assert told == [("parity.add", result.id, [1], "mail")]
