"""Projects with several admin sites, and sites without some of our pages: links stay in a site, none is an error."""

from __future__ import annotations

import re

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.urls import clear_url_caches, include, path

from jobs.contrib.operator.models import Overview
from jobs.contrib.pages.admin import JobAdmin
from jobs.models import Effect, Job, Marker
from tests.helpers.rows import make

pytestmark = pytest.mark.django_db(transaction=True)


class Urls:
    urlpatterns = [path("admin/", admin.site.urls)]


@pytest.fixture
def beside(client, settings):
    """A site beside the usual one, with the pages of these models (default: all)."""

    def add(*models):
        site = admin.AdminSite("beside")
        for kind in models or admin.site._registry:
            site.register(kind, type(admin.site.get_model_admin(kind)))
        settings.ROOT_URLCONF = type("Urls", (), {"urlpatterns": [*Urls.urlpatterns, path("beside/", site.urls)]})
        clear_url_caches()
        client.force_login(User.objects.create_superuser("ada"))
        return client

    return add


def links(client, url: str) -> set[str]:
    answer = client.get(url)
    assert answer.status_code == 200
    return set(re.findall(r'(?:href|action)="(/\w+/[^"?]*)', answer.content.decode()))


def job_of_all_kinds() -> Job:
    job = make("failed")
    make("running", parent_id=job.pk)
    Effect.objects.create(name="charge", key="1", job=job.pk, lease=1, state="parked")
    Marker.objects.create(key="welcome", kind="once", job=job.pk)
    return job


def test_the_links_of_a_page_stay_in_its_site(beside):
    job, client = job_of_all_kinds(), beside()
    for site, other in (("beside", "admin"), ("admin", "beside"), ("beside", "admin")):
        for page in (f"job/{job.pk}/change/", "job/", "overview/"):
            found = links(client, f"/{site}/jobs/{page}")
            assert {link for link in found if link.startswith(f"/{other}/")} == set()
            assert f"/{site}/jobs/job/" in found
    answer = client.post(f"/beside/jobs/job/{job.pk}/operate/", {"operation": "retry"})
    assert answer.url == f"/beside/jobs/job/{job.pk}/change/"


def test_a_site_of_jobs_alone_links_to_nothing_else(beside):
    job, client = job_of_all_kinds(), beside(Job)
    found = links(client, f"/beside/jobs/job/{job.pk}/change/") | links(client, "/beside/jobs/job/")
    assert {link for link in found if not link.startswith(("/static/", "/beside/jobs/job/"))} <= {
        "/beside/", "/beside/jobs/", "/beside/logout/", "/beside/password_change/"
    }  # fmt: skip


def test_a_dashboard_without_the_page_of_jobs_has_no_way_to_them(beside):
    job_of_all_kinds()
    assert not [link for link in links(beside(Overview), "/beside/jobs/overview/") if "/job/" in link]


def test_a_projects_own_class_has_the_pages_of_ours(beside, client, settings):
    ours = type(admin.site.get_model_admin(Job))

    class Own(ours):  # type: ignore[misc, valid-type]
        list_display = (*ours.list_display, "crashes")

    site = admin.AdminSite("own")
    site.register(Job, Own)
    client = beside()
    settings.ROOT_URLCONF = type("Urls", (), {"urlpatterns": [*Urls.urlpatterns, path("own/", site.urls)]})
    clear_url_caches()
    job = make("failed")
    chosen = {"action": "retry", "_selected_action": [str(job.pk)], "index": "0"}
    assert "The one that is chosen" in client.post("/own/jobs/job/", chosen).content.decode()


def test_a_project_may_add_included_pages_and_coroutines_to_ours(client, settings):
    async def waits(request):
        return HttpResponse("waited")

    class Own(JobAdmin):
        def get_urls(self):
            included = path("more/", include([path("", lambda request: HttpResponse("more"))]))
            return [included, path("waits/", waits), *super().get_urls()]

    site = admin.AdminSite("own")
    site.register(Job, Own)
    settings.ROOT_URLCONF = type("Urls", (), {"urlpatterns": [*Urls.urlpatterns, path("own/", site.urls)]})
    clear_url_caches()
    assert [client.get(f"/own/jobs/job/{name}/").content for name in ("more", "waits")] == [b"more", b"waited"]
