"""What pages and metrics say of external calls."""

from __future__ import annotations

import html

import pytest
from django.urls import reverse

from jobs.contrib.effects.models import Effect
from tests.helpers.rows import make

pytestmark = pytest.mark.django_db


def test_calls_belong_to_a_job(admin_client, staff):
    job = make("succeeded")
    call = Effect.objects.create(name="charge", key="k", job=job.pk, lease=1)
    page = reverse("admin:jobs_job_change", args=[job.pk])
    text = html.unescape(admin_client.get(page).content.decode()).partition("What belongs to it")[2]
    assert f'href="{reverse("admin:jobs_effect_change", args=[call.pk])}"' in text
    assert "ambiguous" in text
    # Who may see no calls sees none here.
    assert "charge:k" not in staff("view_job").get(page).content.decode()


def test_metrics_count_what_nobody_knows(admin_client):
    Effect.objects.create(name="charge", key="7", job=make("failed").pk, lease=1, state="parked")
    assert "jobs_unsettled_effects 1.0" in admin_client.get("/jobs/metrics").content.decode().splitlines()
