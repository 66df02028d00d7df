"""What pages and metrics say of external calls."""

from __future__ import annotations

import html
import uuid
from contextlib import suppress
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.urls import reverse

from jobs.contrib.effects.models import Effect
from jobs.contrib.operator import problems, status
from tests.helpers.rows import let_heartbeat, make, make_node

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


def test_calls_that_may_have_been_made_are_a_problem_of_their_own(admin_client, staff):
    """A run of a job that still waits decides by itself; one that nobody knows of is a person's."""
    let_heartbeat(make_node())
    failed, waits = make("failed", error={"type": "EffectParked", "message": "no"}), make("scheduled")
    for number in range(8):
        Effect.objects.create(name="charge", key=number, job=failed.pk, lease=1, state="parked")
    Effect.objects.create(name="refund", key="1", job=uuid.uuid4(), lease=1, state="sending")
    Effect.objects.create(name="charge", key="later", job=waits.pk, lease=1, state="sending")
    Effect.objects.create(name="charge", key="done", job=failed.pk, lease=1, state="sent")
    charge, refund = problems.of(status.gather(live=True))
    assert (charge.kind, charge.severity, charge.number, charge.command) == (
        "unknown_call", "error", 8, "manage.py jobs effects"
    )  # fmt: skip
    assert charge.text == "charge: 8 external calls may have been made, and nobody knows: say what happened"
    assert refund.about == "refund"
    page = reverse("admin:jobs_dashboard")
    text = html.unescape(admin_client.get(page).content.decode())
    link = f"{reverse('admin:jobs_effect_changelist')}?status=unsettled&q=charge"
    assert f'href="{link}"' in text
    assert "Retry these" not in text
    assert len(admin_client.get(link).context["cl"].result_list) == 9
    assert "charge" not in staff("view_job").get(page).content.decode()
    for command in ("status", "doctor"):
        out = StringIO()
        with suppress(CommandError):
            call_command("jobs", command, *(["--no-probe"] if command == "doctor" else []), stdout=out)
        assert "charge: 8 external calls may have been made" in out.getvalue(), command
