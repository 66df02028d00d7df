"""A call goes to the queue that its exchange and routing key lead to, and what no queue gets is refused."""

from __future__ import annotations

import pytest
from celery import current_app
from kombu import Exchange, Queue
from kombu.common import Broadcast

from jobs.models import Job
from tests import tasks
from tests.helpers.harness import deliver
from tests.helpers.parity import ID, ROUTES, ids_replaced, resolve, seen_by_ours, seen_by_stock

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("name", ROUTES)
@pytest.mark.parametrize("task", ["add", "limited", "routed"])
def test_the_body_sees_the_request_that_celery_would_have_made(stock, ours, node, name, task):
    def call(app):
        return app.tasks[f"parity.{task}"].apply_async((1,), task_id=ID, **resolve(app, ROUTES[name]))

    expected = seen_by_stock(stock, call)
    sees = seen_by_ours(ours, call)
    assert sees[0] == expected[0]
    assert ids_replaced(sees) == ids_replaced(expected), "and those of its links"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queue": Queue("unknown-queue")}, "task_queues"),
        ({"exchange": Exchange("unknown")}, "task_queues"),
        ({"queue": Broadcast("everybody")}, "EXCLUDE"),
    ],
)
def test_what_no_queue_gets_is_refused(ours, options, text):
    with pytest.raises(ValueError, match=text):
        ours.tasks["parity.add"].apply_async((1,), **options)
    assert not Job.objects.exists()


def test_a_retry_stays_in_its_queue_behind_a_topic_exchange(node, monkeypatch):
    """Celery routes it by its address, from which it takes another queue's name."""
    topical = Queue("topical", Exchange("topics", type="topic"), routing_key="topical.#")
    monkeypatch.setitem(current_app.amqp.queues, "topical", topical)
    result = tasks.retries.apply_async(("a", 1), exchange="topics", routing_key="topical.x")
    before = Job.objects.get()
    assert before.queue == "topical"
    assert deliver(result)[0] == "RETRY"
    job = Job.objects.get()
    assert (job.queue, job.options) == (before.queue, {**before.options, "eta": True})
