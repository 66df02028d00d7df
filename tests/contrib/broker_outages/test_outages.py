"""Jobs go on while the broker is away, and the worker is there when it is back."""

from __future__ import annotations

import json
import time

import pytest
from celery import current_app
from kombu.message import Message
from vine import promise

from jobs.contrib.broker_outages.outages import _despite_leftovers
from tests import tasks
from tests.helpers.harness import Worker, effects, wait_ended
from tests.helpers.servers import RabbitMQ, Redis, wait_for

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.parametrize("how", ["kill", "pause"])
@pytest.mark.parametrize("kind", [Redis, RabbitMQ])
def test_jobs_go_on_while_the_broker_is_away(kind, how, use_broker, request):
    """Paused, the kernel still accepts connections, and nobody answers."""
    server = request.getfixturevalue(f"{kind.name}_server")
    use_broker(server.url)
    with Worker() as worker:
        wait_ended(tasks.effect.delay("warm").id)
        getattr(server, how)()
        try:
            slowest, results = 0.0, []
            for n in range(50):
                began = time.monotonic()
                results.append(tasks.effect.delay(f"k{n}"))
                slowest = max(slowest, time.monotonic() - began)
            assert slowest < 1.0
            wait_ended(*[result.id for result in results], timeout=20)
        finally:
            server.start() if how == "kill" else server.resume()
        assert worker.process.poll() is None
        # What is not a job comes when the broker is back.
        tasks.stock.delay("stock")
        wait_for(lambda: effects()["stock"], 40, "a stock task ran")
    assert effects() == {"warm": 1, "stock": 1, **{f"k{n}": 1 for n in range(50)}}


def test_the_pool_knows_our_acknowledgements():
    """While it stops it lets out only what it takes for one, and keeps the others until all bodies have ended."""
    from celery.concurrency import prefork

    if not hasattr(prefork, "_is_ack_callback"):
        pytest.skip("this Celery lets out everything")
    message = Message(body="", channel=None)
    for action in (message.ack_log_error, message.reject_log_error):
        assert prefork._is_ack_callback(promise(_despite_leftovers(action)))


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, ["no kwargs"]),
        ({"id": "1"}, ["no kwargs"]),
        ({"id": "1", "timelimit": [1]}, [["a"], {}, {}]),
        ({"id": "1", "timelimit": ["a", None]}, [["a"], {}, {}]),
        ({"id": "1", "expires": "9999-12-31T23:59:59"}, [["a"], {}, {}]),
    ],
)
def test_a_message_that_cannot_be_read_ends_no_worker(headers, body):
    berlin = json.dumps({"timezone": "Europe/Berlin"})
    with Worker(concurrency=1, JOBS_TEST_CELERY=berlin) as worker, current_app.connection_for_write() as broker:
        message = {"headers": {"task": "tests.tasks.effect", **headers}, "serializer": "json"}
        broker.Producer().publish(body, routing_key=current_app.conf.task_default_queue, **message)
        wait_for(lambda: "Received invalid task message" in worker.text(), 20, worker.text)
        by_name = current_app.send_task("tests.tasks.effect", ("a",))
        wait_for(lambda: effects() == {"a": 1}, 20, by_name.id)
