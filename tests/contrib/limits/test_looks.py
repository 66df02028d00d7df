"""A job whose limit is reached stays ready. Looks that find nothing else lead to a few claims a second, and no more."""

from __future__ import annotations

import threading
import time
import uuid

import pytest
from django.db import connection

from jobs.contrib.limits.claims import QUIET
from jobs.contrib.listening import listener
from jobs.lifecycle.wakeups import notify
from jobs.lifecycle.worker_state import worker_state
from jobs.maintenance.rescue import Rescue
from jobs.models import Job
from tests import tasks
from tests.contrib.limits import tasks as bodies
from tests.faults.worker import Worker
from tests.helpers.harness import wait_ended
from tests.helpers.looks import Looks
from tests.helpers.servers import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

SECONDS = 3.0


def test_a_reached_limit_wakes_no_process_in_vain_at_each_look(tmp_path):
    if connection.vendor != "postgresql":
        pytest.skip("PostgreSQL only: elsewhere nobody is told of new jobs")
    looks = Looks(tmp_path / "looks")
    # Two workers: of each notification one of them looks at once, and the other a moment later.
    with Worker(concurrency=3, **looks.env), Worker(concurrency=3, **looks.env):
        bodies.two_at_once.delay_many([(str(number), 2 * SECONDS) for number in range(2)])
        wait_for(lambda: Job.objects.filter(state="running").count() == 2)
        bodies.two_at_once.delay_many([("waits", 0.0)])
        before, end, told = looks.count(), time.monotonic() + SECONDS, 0
        while time.monotonic() < end:
            wait_ended(tasks.noop.delay(told).id)
            told += 1
        claims = looks.count() - before
        others = claims - 3 * told
        assert told > 10
        # Each of the six processes may rest for a quarter of a second only.
        assert others < 6 * 4 * SECONDS, f"{claims} claims of {told} jobs"
        wait_for(lambda: not Job.objects.exclude(state="succeeded").exists(), timeout=30)


@pytest.mark.parametrize("nodes", [1, 200])
def test_all_nodes_together_look_as_often_as_a_few(nodes, node, monkeypatch):
    """While a limit is reached: 200 nodes looked four times a second each, and woke a process each time."""
    if connection.vendor != "postgresql":
        pytest.skip("PostgreSQL only: elsewhere nobody is told of new jobs")
    looks, stopping, queue = [], threading.Event(), "celery"

    def look(alias):
        # What a claim says that found nothing else.
        worker_state.rests_until = time.monotonic() + QUIET
        looks.append(time.monotonic())

    monkeypatch.setattr(listener, "_look", look)
    monkeypatch.setattr(Rescue, "living", {node.pk: [queue], **{uuid.uuid4(): [queue] for _ in range(nodes - 1)}})
    monkeypatch.setattr(worker_state, "queues", [queue])
    thread = threading.Thread(target=listener._listen, args=("default", stopping))
    thread.start()
    try:
        wait_for(lambda: looks)
        end = time.monotonic() + 2 * SECONDS
        while time.monotonic() < end:
            notify("default", [queue])
            time.sleep(0.05)
    finally:
        stopping.set()
        thread.join()
    # With 200 each one waits for up to two seconds and a half more.
    each_second = len(looks) / (2 * SECONDS)
    assert each_second < (4.5 if nodes == 1 else 2.0)
    assert len(looks) > 1
