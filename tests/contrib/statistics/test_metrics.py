"""What Prometheus counts: the jobs that ended."""

from __future__ import annotations

import datetime

import pytest
from django.utils import timezone

from jobs.contrib.statistics.counting import HOUR, Count, floor
from jobs.contrib.statistics.models import Tally
from tests.helpers.rows import ERROR, ended

pytestmark = pytest.mark.django_db(transaction=True)

METRICS = "/jobs/metrics"


def test_what_ended_is_counted_by_its_end(admin_client):
    for state in ("succeeded", "failed", "cancelled"):
        ended(timezone.now() - datetime.timedelta(minutes=5), state=state)
    Count().run_once()
    lines = admin_client.get(METRICS).content.decode().splitlines()
    task = 'name="tests.tasks.effect",queue_name="celery"'
    for line in (
        f"celery_task_succeeded_total{{{task}}} 1.0",
        f'celery_task_failed_total{{exception="ValueError",{task}}} 1.0',
        f"celery_task_revoked_total{{{task}}} 1.0",
    ):
        assert line in lines, (line, lines)


def test_cancelled_jobs_are_one_counter_whatever_they_were_cancelled_for(admin_client):
    """A scraper refuses two samples under the same labels."""
    for kind in ("Cancelled", "Expired"):
        ended(timezone.now() - datetime.timedelta(minutes=5), state="cancelled", error={**ERROR, "type": kind})
    Count().run_once()
    lines = admin_client.get(METRICS).content.decode().splitlines()
    found = [line for line in lines if line.startswith("celery_task_revoked_total{")]
    assert found == ['celery_task_revoked_total{name="tests.tasks.effect",queue_name="celery"} 2.0']


def test_counters_only_grow(admin_client):
    def succeeded() -> float:
        lines = admin_client.get(METRICS).content.decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("celery_task_succeeded_total"))

    old = floor(timezone.now() - 40 * 24 * HOUR, HOUR)
    for number in range(3):
        values = {"task": "t", "queue": "q", "state": "succeeded", "error": ""}
        Tally.objects.create(length=3600, begin=old + number * HOUR, count=10, **values)
    assert succeeded() == 30
    for _ in range(2):
        Count().run_once()
        assert succeeded() == 30
    assert [row.length for row in Tally.objects.all()] == [0]
