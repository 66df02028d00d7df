"""django-health-check: whether a worker answers, and whether each queue has one."""

import datetime

import pytest
from health_check.contrib.celery import Ping
from health_check.exceptions import ServiceUnavailable

from tests.helpers.harness import Worker

pytestmark = pytest.mark.django_db(transaction=True)


def test_it_is_well_while_a_worker_answers():
    ping = Ping(timeout=datetime.timedelta(seconds=3), limit=1)
    with Worker(concurrency=1):
        ping.run()
    with pytest.raises(ServiceUnavailable):
        Ping(timeout=datetime.timedelta(seconds=1)).run()


def test_it_says_that_a_queue_has_no_worker():
    with Worker("-Q", "mail", concurrency=1), pytest.raises(ServiceUnavailable, match="queue celery"):
        Ping(timeout=datetime.timedelta(seconds=3), limit=1).run()
