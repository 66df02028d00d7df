"""The page of the schedule: what runs when, how it went, and the buttons that pause, resume and run an entry."""

from __future__ import annotations

import re

import pytest
from django.urls import reverse
from playwright.sync_api import expect

from jobs.models import Job, Schedule
from tests.browser.axe import violations
from tests.browser.pages import RUN, said
from tests.browser.rows import ago, schedule, worker
from tests.helpers.rows import make

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.usefixtures("scheduled")]

ENTRIES = reverse("admin:jobs_schedule_changelist")
REPORT = reverse("admin:jobs_schedule_change", args=["report"])


def test_the_list_says_what_runs_when_and_how_it_went(visit):
    worker()
    last = make("failed", age=60)
    schedule(last_job=last.pk, missed=3, missed_at=ago(7200))
    schedule(name="clean up", paused_at=ago(60), next_tick=ago(-3600))
    page = visit("*")
    page.goto(ENTRIES)
    report = page.locator("#result_list tbody tr").filter(has_text="report")
    for name, shown in (("next_in", "in "), ("last_ago", " ago"), ("missed", "3")):
        expect(report.locator(f".field-{name}")).to_contain_text(shown)
    row = Schedule.objects.get(pk="report")
    expect(report.locator(".field-next_in time")).to_have_attribute("title", re.compile(f"{row.next_tick:%H:%M:%S}"))
    expect(report.locator(".field-last_job_link")).to_contain_text(f"{str(last.pk)[-8:]} failed")
    expect(report.locator(".field-status")).to_have_text("in time")
    page.get_by_role("link", name="paused", exact=True).click()
    expect(page.locator("#result_list tbody tr")).to_have_count(1)
    expect(page.locator(".field-status")).to_have_text("paused")


@pytest.mark.slow
def test_an_entry_is_paused_resumed_and_run_on_its_page(hand):
    worker()
    schedule()
    for verb, says in (("Pause", "Paused: report"), ("Resume", "Resumed: report"), ("Run now", "Made a job of each")):
        hand.page.goto(REPORT)
        assert not hand.has_script or violations(hand.page) == []
        hand.press(hand.page.get_by_role("button", name=verb))
        said(hand).to_contain_text(says)
        assert (Schedule.objects.get().paused_by == "ada") is (verb == "Pause")
    assert Job.objects.get().task == "tests.tasks.noop"


def test_entries_are_run_from_the_list(hand):
    worker()
    schedule()
    hand.page.goto(ENTRIES)
    hand.tick(hand.page.locator('input[name=_selected_action][value="report"]'))
    hand.choose(hand.page.get_by_label("Action:"), "Run now")
    hand.press(hand.page.locator(RUN))
    said(hand).to_contain_text("Made a job of each: report")
    assert Job.objects.get().task == "tests.tasks.noop"


def test_who_may_only_look_has_no_buttons(visit):
    worker()
    schedule()
    page = visit("view_schedule")
    page.goto(REPORT)
    expect(page.get_by_role("main").get_by_role("button")).to_have_count(0)
