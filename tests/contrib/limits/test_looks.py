"""A job whose limit is reached stays ready. Looks that find nothing else lead to a few claims a second, and no more."""

from __future__ import annotations

import time

import pytest
from django.db import connection

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
