"""One machine's clock is an hour ahead, or behind; time passes there as fast as everywhere."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from django.db.models import F

from jobs.models import Job
from tests import tasks
from tests.faults.clock import clock
from tests.faults.guards import Without, guard
from tests.faults.ledger import WORK
from tests.faults.manner import again
from tests.faults.producer import Producer
from tests.faults.worker import Worker, workers
from tests.helpers.servers import wait_for
from tests.models import Order

#: The database's clock, and not the machine's, says what is now.
CLOCK = Without("jobs.lifecycle.transitions:now_plus", "timezone.now() + datetime.timedelta(seconds=seconds)")


def assert_all_on_time() -> None:
    """Neither before their time nor long after it; the jobs that did not run are not meant."""
    started = Job.objects.filter(started_at__isnull=False)
    assert not started.filter(started_at__lt=F("run_at")).exists()
    assert not started.filter(started_at__gt=F("run_at") + timedelta(minutes=10)).exists()
    assert not started.filter(started_at__gt=F("expires_at")).exists()


@guard(CLOCK, case="ahead")
@pytest.mark.parametrize("hours", [1, -1], ids=["ahead", "behind"])
def test_worker_with_a_wrong_clock(ledger, hours):
    """It claims, polls and rescues beside one whose clock is right.

    Guard: the database's clock decides what is due and what expired.
    """
    ledger.enqueue(2, tasks.slow, kwargs={"seconds": 6})
    expired = ledger.enqueue(20, expires=0.5)
    time.sleep(1)
    with Worker(), Worker(**clock(hours)) as wrong:
        ledger.enqueue(100)
        ledger.enqueue(60, countdown=2)
        ledger.enqueue(60, expires=60)
        ledger.enqueue(60, tasks.retries, kwargs={"times": 1})

        def takes_part() -> bool:
            # On a busy machine the other one has long begun when this one comes.
            ledger.enqueue(20)
            return Job.objects.filter(node=wrong.node).count() > 50

        wait_for(takes_part, 20, "the wrong clock has run its share", step=0.5)
        ledger.check(within=WORK, otherwise=dict.fromkeys(expired, "cancelled"))
        assert set(Job.objects.values_list("node_losses", "crashes")) == {(0, 0)}
        assert_all_on_time()


@guard(CLOCK, case="ahead")
@guard(CLOCK, case="behind")
@pytest.mark.parametrize("hours", [again(1), -1], ids=["ahead", "behind"])
def test_producer_with_a_wrong_clock(ledger, hours):
    """What it says in seconds is meant from now on, and not from its own idea of now.

    Guard: the database's clock decides what is due and what expired.
    """
    for options in {}, {"countdown": 2}, {"expires": 60}, {"countdown": 2, "expires": 60}:
        with Producer(80, options=options, **clock(hours)) as producer:
            producer.wait()
    with workers(2):
        ledger.check(within=WORK)
        assert_all_on_time()


@guard(CLOCK, case="ahead")
@pytest.mark.parametrize("hours", [1, again(-1)], ids=["ahead", "behind"])
def test_producer_with_a_wrong_clock_whose_jobs_expire(ledger, hours):
    """Nobody works while they could be run.

    Guard: the database's clock decides what expired.
    """
    with Producer(60, options={"expires": 1}, **clock(hours)) as producer:
        producer.wait()
    expired = list(Order.objects.values_list("key", flat=True))
    time.sleep(1)
    ledger.enqueue(300)
    with workers(2):
        ledger.check(within=WORK, otherwise=dict.fromkeys(expired, "cancelled"))
