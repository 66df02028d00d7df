"""In some blocks the call of a stock task is a row, too: a job sends its message after the commit."""

from __future__ import annotations

import pytest
from celery import current_app, signals
from django.db import transaction

from jobs.contrib.stock_calls.sending import calls_are_rows
from jobs.models import Job
from jobs.testing import run_jobs
from tests import tasks

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def sent():
    found = []

    def note(sender, headers, body, **kwargs):
        found.append((sender, list(body[0]), headers["id"]))

    signals.before_task_publish.connect(note)
    yield found
    signals.before_task_publish.disconnect(note)


def test_it_is_sent_after_the_commit_under_the_id_that_the_call_returned(sent):
    with transaction.atomic(), calls_are_rows("default"):
        result = tasks.stock.delay("s")
        named = current_app.send_task("elsewhere.task", ("e",), countdown=5)
        assert sent == []
    assert [job.task for job in Job.objects.all()] == ["jobs.send"] * 2
    run_jobs()
    assert sent == [(tasks.stock.name, ["s"], result.id), ("elsewhere.task", ["e"], named.id)]


def test_it_is_not_sent_if_the_transaction_rolls_back(sent):
    with pytest.raises(LookupError), calls_are_rows("default"):
        tasks.stock.delay("s")
        raise LookupError
    run_jobs()
    assert (sent, Job.objects.count()) == ([], 0)


def test_outside_of_such_a_block_celery_sends_it_at_once(sent):
    with transaction.atomic():
        result = tasks.stock.delay("s")
        assert sent == [(tasks.stock.name, ["s"], result.id)]
    assert not Job.objects.exists()
