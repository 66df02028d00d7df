"""A batch that does not end is said, with what somebody can do about it."""

from __future__ import annotations

import datetime

import pytest
from django.urls import reverse
from django.utils import timezone

from jobs.contrib.batches.models import Batch
from jobs.contrib.operator import problems, status
from jobs.models import Job
from tests.helpers.rows import let_heartbeat, make, make_node

pytestmark = pytest.mark.django_db(transaction=True)


def noted() -> list[problems.Problem]:
    return problems.of(status.gather(live=True))


def test_a_batch_that_waits_for_its_last_job():
    let_heartbeat(make_node())
    hour = timezone.now() - datetime.timedelta(hours=1)
    batch = Batch.objects.create(name="import", made_at=hour)
    make("succeeded", batch=batch)
    last, other = (make("ready", batch=batch) for _ in range(2))
    assert noted() == []
    Job.objects.filter(pk=other.pk).delete()
    [remark] = noted()
    assert (remark.kind, remark.about, remark.severity) == ("batch", last.pk, "info")


def test_a_batch_that_cannot_be_closed(admin_client):
    let_heartbeat(make_node())
    hour = timezone.now() - datetime.timedelta(hours=1)
    batch = Batch.objects.create(name="import", made_at=hour)
    job = make("succeeded", batch=batch)
    assert noted() == []
    Job.objects.filter(pk=job.pk).update(finished_at=hour)
    [remark] = noted()
    assert (remark.kind, remark.about, remark.severity) == ("unclosed", batch.pk, "error")
    assert (
        reverse("admin:jobs_batch_change", args=[batch.pk])
        in admin_client.get(reverse("admin:jobs_dashboard")).content.decode()
    )
