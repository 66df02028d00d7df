"""Bars go on by themselves, workers are told things, and a batch is cancelled as a whole."""

from __future__ import annotations

import pytest
from django.urls import reverse
from django.utils import timezone
from playwright.sync_api import expect

from jobs.contrib.operator import store
from jobs.models import Job
from jobs.store import databases
from shop.services import hand_in
from tests.browser.axe import violations
from tests.browser.pages import change, said
from tests.contrib.batches.making import made
from tests.helpers.rows import make, make_node, say

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


def test_the_bar_of_a_sites_own_page_goes_on_by_itself(visit):
    file = hand_in("name,email\nAda,ada@example.com\n")
    running = make("running")
    Job.objects.filter(pk=file.job).update(
        state="running", lease=1, node=running.node, token=1, started_at=timezone.now()
    )
    page = visit()
    page.goto(file.get_absolute_url())
    bar, text = page.get_by_role("progressbar"), page.get_by_role("status")
    expect(text).to_have_text("running")
    assert violations(page) == []
    say(Job.objects.get(pk=file.job), 1, text="one of four")
    expect(text).to_have_text("running: one of four")
    expect(bar).to_have_js_property("value", 25)
    Job.objects.filter(pk=file.job).update(state="succeeded", finished_at=timezone.now())
    expect(text).to_have_text("succeeded")
    expect(bar).to_have_js_property("value", 100)


def test_the_admin_shows_the_bar(visit):
    job = make("running")
    say(job, 3, text="nearly")
    page = visit("view_job")
    page.goto(change(job))
    expect(page.get_by_role("progressbar")).to_have_js_property("value", 75)
    expect(page.get_by_text("75 % nearly")).to_be_visible()
    assert violations(page) == []


@pytest.mark.parametrize("label", ["Quiet: claim nothing more", "Claim again", "Stop, when what runs has ended"])
def test_a_worker_is_told(hand, label):
    node = make_node()
    hand.page.goto(change(node))
    hand.write(hand.page.get_by_label("Why (for the history):"), "a test")
    hand.press(hand.page.get_by_role("button", name=label))
    said(hand).to_contain_text("obeys within a second")
    with databases.side() as side:
        [told] = store.read(side, node.pk)
    assert told.text.endswith("by ada (a test)")


@pytest.mark.slow
def test_a_batch_is_cancelled_as_a_whole(hand):
    found, other = made(3), make("ready")
    hand.page.goto(reverse("admin:jobs_batch_change", args=[found.pk]))
    assert not hand.has_script or violations(hand.page) == []
    hand.write(hand.page.get_by_label("Why (for the history):"), "the wrong file")
    hand.press(hand.page.get_by_role("button", name="Cancel: all jobs"))
    said(hand).to_contain_text("3 jobs cancelled")
    assert set(found.jobs.values_list("state", flat=True)) == {"cancelled"}
    assert Job.objects.get(pk=other.pk).state == "ready"
