"""What people may not see of arguments they see of no call."""

from __future__ import annotations

import pytest
from django.urls import reverse

from jobs.models import Effect
from tests.helpers.redactions import SECRET, redact
from tests.helpers.rows import make

pytestmark = pytest.mark.django_db


def test_answers_of_calls_are_redacted_and_so_is_what_a_person_says_of_them(settings, admin_client):
    job = make("failed", kwargs={"note": SECRET})
    call = Effect.objects.create(
        name="charge", key="k", job=job.pk, lease=1, state="parked", answer={"a": "of-the-call"}
    )
    redact(settings, "tests.helpers.redactions.hide_answers")
    url = reverse("admin:jobs_effect_change", args=[call.pk])
    assert "of-the-call" not in admin_client.get(url).content.decode()
    said = {"verb": "happened", "answer": '{"id": "by-a-person"}'}
    admin_client.post(reverse("admin:jobs_effect_settle", args=[call.pk]), said)
    call.refresh_from_db()
    assert call.answer == {"id": "by-a-person"}
    assert "by-a-person" not in admin_client.get(url).content.decode()
    assert "by-a-person" not in admin_client.get(url.replace("change", "history")).content.decode()
