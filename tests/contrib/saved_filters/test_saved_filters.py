"""Filters of the list of jobs that people keep under a name."""

from __future__ import annotations

import html
import re

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from jobs.contrib.saved_filters import page as filters_page
from jobs.contrib.saved_filters.models import SavedFilter
from tests.helpers.admin_list import LIST

pytestmark = [pytest.mark.django_db, pytest.mark.database]

SAVE = reverse("admin:jobs_saved_filters_savedfilter_save")


@pytest.fixture
def clients():
    """Ada and Bob, who may look at jobs; and Eve, who may not."""
    found = {}
    for name in ("ada", "bob", "eve"):
        user = User.objects.create_user(name, is_staff=True)
        if name != "eve":
            user.user_permissions.add(Permission.objects.get(codename="view_job"))
        found[name] = Client(enforce_csrf_checks=name == "bob")
        found[name].force_login(user)
    return found


def saved(client) -> dict[str, str]:
    """The filters beside the list, and where each leads."""
    text = client.get(LIST).content.decode()
    part = text.partition("Saved filters</summary>")[2].partition("</details>")[0]
    return {name.strip(): html.unescape(url) for url, name in re.findall(r'<a href="([^"]*)"[^>]*>([^<]*)</a>', part)}


def save(client, name: str, query: str = "state__exact=failed", **more: str):
    return client.post(SAVE, {"name": name, "query": query, **more}, follow=True)


def drop(client, row: SavedFilter) -> int:
    return client.post(reverse("admin:jobs_saved_filters_savedfilter_drop", args=[row.pk])).status_code


def test_a_filter_is_saved_and_leads_back_to_the_list(clients):
    response = save(clients["ada"], " mine ", "p=after,7&state__exact=failed&queue=a%26b")
    assert response.redirect_chain == [(f"{LIST}?queue=a%26b&state__exact=failed", 302)]
    assert saved(clients["ada"]) == {"mine": "?queue=a%26b&state__exact=failed"}
    shown = clients["ada"].get(f"{LIST}?state__exact=failed&queue=a%26b").content.decode()
    assert 'aria-current="true">mine<' in shown
    assert LogEntry.objects.get().change_message == "Saved the filter queue=a%26b&state__exact=failed"


def test_the_same_name_replaces_what_it_was(clients):
    save(clients["ada"], "mine")
    save(clients["ada"], "mine", "queue=mail")
    assert saved(clients["ada"]) == {"mine": "?queue=mail"}


def test_others_see_what_is_shared_and_only_its_owner_deletes_it(clients):
    save(clients["ada"], "mine")
    save(clients["ada"], "ours", is_shared="on")
    assert saved(clients["bob"]) == {"ours (ada)": "?state__exact=failed"}
    ours = SavedFilter.objects.get(name="ours")
    assert "/drop/" not in clients["bob"].get(LIST).content.decode()
    clients["bob"].handler.enforce_csrf_checks = False
    of_bob = clients["bob"].get(reverse("admin:jobs_saved_filters_savedfilter_changelist")).content.decode()
    assert "ours" in of_bob
    assert "mine" not in of_bob
    assert drop(clients["bob"], ours) == 404
    assert drop(clients["ada"], ours) == 302
    assert saved(clients["bob"]) == {}
    assert LogEntry.objects.first().change_message == "Deleted the filter state__exact=failed"


def test_it_needs_a_token_and_the_permission_to_look_at_jobs(clients):
    assert clients["bob"].post(SAVE, {"name": "x", "query": "queue=a"}).status_code == 403
    assert clients["eve"].post(SAVE, {"name": "x", "query": "queue=a"}).status_code == 403
    assert clients["ada"].get(SAVE).status_code == 405
    assert not SavedFilter.objects.exists()


@pytest.mark.parametrize(("name", "query"), [("", "queue=a"), ("x", ""), ("x", "p=2"), ("x", f"queue={'a' * 2000}")])
def test_what_is_no_filter_or_has_no_name_is_not_saved(clients, name, query):
    response = save(clients["ada"], name, query)
    assert "Nothing was saved: choose a filter, and give it a name." in response.content.decode()
    assert not SavedFilter.objects.exists()


def test_there_is_an_end_to_them(clients, monkeypatch):
    monkeypatch.setattr(filters_page, "MOST", 2)
    for name in ("a", "b", "c", "b"):
        response = save(clients["ada"], name)
    assert [*saved(clients["ada"])] == ["a", "b"]
    assert "Saved as" in response.content.decode()


def test_a_name_that_looks_like_html_is_text(clients):
    save(clients["ada"], "<b>x</b>")
    assert "<b>x</b>" not in clients["ada"].get(LIST).content.decode()


def test_what_many_others_share_does_not_push_out_ones_own(clients):
    for number in range(120):
        SavedFilter.objects.create(owner="cyd", name=f"a {number:03}", query="q=x", is_shared=True)
    save(clients["ada"], "zebra")
    assert next(iter(saved(clients["ada"]))) == "zebra"
