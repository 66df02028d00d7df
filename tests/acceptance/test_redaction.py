"""What people may not see of arguments and results, they see on no page of any extension."""

from __future__ import annotations

import uuid

import pytest
from django.urls import reverse

from jobs.contrib.pages.html import url_of
from jobs.events.models import Event
from jobs.models import Effect, Job, Marker
from tests.helpers.redactions import SECRET, commands, failed, of_job, redact, text_of
from tests.helpers.rows import make

pytestmark = pytest.mark.django_db


def test_keys_do_not_tell_it_either(settings, admin_client):
    key = f"welcome:{SECRET}"
    job = failed(marker_key=key, unique_key=key, order_key=key)
    marker = Marker.objects.create(key=key, kind="task", job=job.pk)
    call = Effect.objects.create(name="charge", key=SECRET, job=job.pk, lease=1, answer={"to": SECRET}, state="parked")
    gone = Marker.objects.create(key=f"{SECRET}-gone", kind="once", job=uuid.uuid4())
    make("ready", kwargs={"note": SECRET}, unique_key=key)
    redact(settings)
    shown = [
        ("job_change", [job.pk]), ("marker_changelist", []), ("marker_change", [marker.pk]),
        ("marker_change", [gone.pk]), ("marker_delete", [marker.pk]), ("effect_changelist", []),
        ("effect_change", [call.pk]),
    ]  # fmt: skip
    text = text_of(admin_client, *shown) + of_job(job) + commands(["effects"], ["effects", "--json"])
    answer = admin_client.post(
        reverse("admin:jobs_job_operate_one", args=[job.pk]), {"operation": "retry"}, follow=True
    )
    text += answer.content.decode()
    assert SECRET not in text
    assert "welcome:***" in text
    assert "charge:***" in text


def test_nobody_finds_it_out_by_a_search(settings, admin_client):
    key = f"welcome:{SECRET}"
    job = failed(unique_key=key)
    Marker.objects.create(key=key, kind="task", job=job.pk)
    Effect.objects.create(name="charge", key=SECRET, job=job.pk, lease=1)
    Event.objects.create(name="shop.paid", source="shop", order_key=SECRET, data={"note": SECRET})

    def found(model: str, term: str) -> int:
        response = admin_client.get(url_of(f"{model}_changelist"), {"q": term})
        return len(response.context["cl"].result_list)

    parts = [("job", "s3cret-4"), ("marker", "welcome:s3"), ("effect", "charge:s3")]
    # The whole key answers a guess.
    wholes = [("marker", key), ("effect", f"charge:{SECRET}"), ("event", SECRET)]
    others = [("marker", job.pk), ("effect", job.pk), ("effect", "charge"), ("job", "ValueError"), ("event", "shop")]
    by_key, page = reverse("admin:jobs_job_changelist"), reverse("admin:jobs_job_change", args=[job.pk])
    assert [found(*each) for each in parts + wholes + others] == [1] * 11
    assert len(admin_client.get(by_key, {"key": key}).context["cl"].result_list) == 1
    assert "?key=" in admin_client.get(page).content.decode()
    redact(settings)
    assert [found(*each) for each in parts + wholes] == [0] * 6
    assert [found(*each) for each in others] == [1] * 5
    assert admin_client.get(by_key, {"key": key}).status_code == 302
    assert 'name="key"' not in admin_client.get(by_key).content.decode()
    # A filter that is not there never means all jobs.
    many = f"{reverse('admin:jobs_job_operate')}?key={key}"
    assert admin_client.post(many, {"operation": "retry", "scope": "all"}).status_code == 403
    assert Job.objects.get().state == "failed"
    Job.objects.filter(pk=job.pk).update(unique_key="of-no-argument")
    assert "?key=" not in admin_client.get(page).content.decode(), "no link to a filter that is not there"
