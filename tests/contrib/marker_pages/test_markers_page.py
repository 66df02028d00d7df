"""The markers in the admin: found by key or job, and forgotten by who may."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from jobs.models import Marker
from tests.helpers.rows import make

pytestmark = pytest.mark.django_db

LIST = reverse("admin:jobs_marker_changelist")


@pytest.fixture
def marker() -> Marker:
    Marker.objects.create(key="once:1", kind="once")
    return Marker.objects.create(key="welcome:1", kind="task", job=make("succeeded").pk)


def page(marker: Marker, name: str = "change") -> str:
    return reverse(f"admin:jobs_marker_{name}", args=[marker.pk])


def keys(client, **query: str) -> list[str]:
    return [marker.key for marker in client.get(LIST, query).context["cl"].result_list]


def test_listed_and_found_by_key_and_job(staff, marker):
    client = staff("view_marker", "view_job")
    assert keys(client) == ["welcome:1", "once:1"]
    assert (
        keys(client, q="welc") == keys(client, q=str(marker.job)) == keys(client, kind__exact="task") == ["welcome:1"]
    )
    assert keys(client, q="elcome") == []
    text = client.get(page(marker)).content.decode()
    assert f'href="{reverse("admin:jobs_job_change", args=[marker.job])}"' in text
    assert "the next job or block that asks does the work" in text


def test_who_may_deletes_it_after_a_confirmation(staff, marker):
    client = staff("view_marker", "delete_marker")
    assert page(marker, "delete") in client.get(page(marker)).content.decode()
    assert client.get(page(marker, "delete")).status_code == 200
    assert Marker.objects.count() == 2
    client.post(page(marker, "delete"), {"post": "yes"})
    assert Marker.objects.get().key == "once:1"
    assert (LogEntry.objects.get().object_repr, LogEntry.objects.get().user.username) == ("welcome:1", "ada")


def test_who_may_only_look_changes_nothing(staff, marker):
    client = staff("view_marker")
    assert page(marker, "delete") not in client.get(page(marker)).content.decode()
    assert client.post(page(marker, "delete"), {"post": "yes"}).status_code == 403
    assert client.post(page(marker), {"key": "x", "_save": "1"}).status_code == 403
    client.post(LIST, {"action": "delete_selected", "_selected_action": marker.pk, "post": "yes"})
    assert Marker.objects.count() == 2
